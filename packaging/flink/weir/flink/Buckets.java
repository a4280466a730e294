package weir.flink;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.table.api.dataview.MapView;
import org.apache.flink.types.Row;

/**
 * The number of values up to each limit and above the one before: the state of weir's {@code
 * histogram}, with the same numbers of buckets, which ascend with their limits.
 *
 * <p>Limits are a text: numbers with spaces between them, or {@link #POWERS}. One bucket more has
 * what is above the last limit. States of parts of a group are merged by adding the counts.
 */
final class Buckets {
    /** The limits 0 and the powers of two, of either sign. */
    static final String POWERS = "powers of 2";

    /** Added to the exponent of a power of two (at least -1074): positive numbers of buckets. */
    private static final int EXPONENT_BIAS = 1075;

    /** The bucket of NaN: above that of infinity, whose exponent counts as 1024. */
    private static final int NAN_BUCKET = EXPONENT_BIAS + 1025;

    /** Bits of the fraction of a double. */
    private static final int FRACTION_BITS = 52;

    /** The state of a group. */
    public static class State {
        /** Whether the values are doubles; otherwise they are integers. */
        public Boolean real = null;

        /** The limits. */
        public String limits = null;

        /** The number of values of each bucket. */
        public MapView<Long, Long> counts = new MapView<>();
    }

    /** The limits of integers that were read last: a task has rows of one call. */
    private String integersOf = null;

    private long[] integers = null;

    /** The limits of doubles that were read last. */
    private String doublesOf = null;

    private double[] doubles = null;

    /** Adds {@code weight} times an integer, unless it is NULL. */
    void add(State state, Long x, String limits, long weight) throws Exception {
        begin(state, false, limits);
        if (x != null) {
            Ranking.add(state.counts, bucket(x.longValue(), limits), weight);
        }
    }

    /** Adds {@code weight} times a double, unless it is NULL. */
    void add(State state, Double x, String limits, long weight) throws Exception {
        begin(state, true, limits);
        if (x != null) {
            Ranking.add(state.counts, bucket(x.doubleValue(), limits), weight);
        }
    }

    /** States what the values are. */
    static void begin(State state, boolean real, String limits) {
        state.real = real;
        state.limits = limits;
    }

    /** Adds a partial aggregate {@code sign} times, unless it is NULL. */
    static void addPartial(State state, byte[] bytes, long sign) throws Exception {
        if (bytes == null) {
            return;
        }
        var partial = new Partial(bytes);
        for (long left = partial.unsigned(); left > 0; left--) {
            long bucket = partial.signed();
            Ranking.add(state.counts, bucket, sign * partial.signed());
        }
        partial.end();
    }

    /** Adds the states of parts of the group. */
    static void merge(State state, Iterable<State> parts) throws Exception {
        for (State part : parts) {
            if (part.limits != null) {
                begin(state, part.real, part.limits);
            }
            for (Map.Entry<Long, Long> entry : part.counts.entries()) {
                Ranking.add(state.counts, entry.getKey(), entry.getValue());
            }
        }
    }

    /** The limits of the buckets with their counts; null without values. */
    Row[] counts(State state) throws Exception {
        var sorted = new TreeMap<Long, Long>();
        for (Map.Entry<Long, Long> entry : state.counts.entries()) {
            sorted.put(entry.getKey(), entry.getValue());
        }
        List<Row> rows = new ArrayList<>();
        for (Map.Entry<Long, Long> entry : sorted.entrySet()) {
            int bucket = Math.toIntExact(entry.getKey());
            // A conditional expression would make doubles of integers.
            if (state.real) {
                rows.add(Row.of(real(bucket, state.limits), entry.getValue()));
            } else {
                rows.add(Row.of(integer(bucket, state.limits), entry.getValue()));
            }
        }
        return rows.isEmpty() ? null : rows.toArray(new Row[0]);
    }

    /** The number of the bucket of an integer. */
    private long bucket(long x, String limits) {
        if (!limits.equals(POWERS)) {
            long[] all = integers(limits);
            int bucket = 0;
            for (int end = all.length; bucket < end; ) {
                int middle = (bucket + end) >>> 1;
                if (all[middle] < x) {
                    bucket = middle + 1;
                } else {
                    end = middle;
                }
            }
            return bucket;
        }
        if (x == 0) {
            return 0;
        }
        // The limit 2^k has the number k + 1, the limit -2^k the number -(k + 1).
        return x > 0
                ? 65 - Long.numberOfLeadingZeros(x - 1)
                : Long.numberOfLeadingZeros(Math.abs(x)) - 64;
    }

    /** The number of the bucket of a double. */
    private long bucket(double x, String limits) {
        if (!limits.equals(POWERS)) {
            double[] all = doubles(limits);
            int bucket = 0;
            for (int end = all.length; bucket < end; ) {
                int middle = (bucket + end) >>> 1;
                if (all[middle] < x || Double.isNaN(x)) {
                    bucket = middle + 1;
                } else {
                    end = middle;
                }
            }
            return bucket;
        }
        if (x == 0) {
            return 0;
        }
        if (Double.isNaN(x)) {
            return NAN_BUCKET;
        }
        long bits = Double.doubleToLongBits(Math.abs(x));
        long fraction = bits & ((1L << FRACTION_BITS) - 1);
        int exponent = (int) (bits >>> FRACTION_BITS) - 1023;
        boolean exact = fraction == 0;
        if (exponent == -1023) {
            exponent = 63 - Long.numberOfLeadingZeros(fraction) - 1074;
            exact = Long.bitCount(fraction) == 1;
        }
        if (x < 0) {
            return -(EXPONENT_BIAS + exponent);
        }
        return EXPONENT_BIAS + exponent + (exact ? 0 : 1);
    }

    /** The limit of a bucket of integers; null above the last one. */
    private Long integer(int bucket, String limits) {
        if (!limits.equals(POWERS)) {
            long[] all = integers(limits);
            return bucket < all.length ? all[bucket] : null;
        }
        if (bucket == 0) {
            return 0L;
        }
        if (bucket > 0) {
            // The greatest integer is not a power of two.
            return bucket < 64 ? 1L << (bucket - 1) : Long.MAX_VALUE;
        }
        return Long.MIN_VALUE >> (64 + bucket);
    }

    /** The limit of a bucket of doubles; null above the last one. */
    private Double real(int bucket, String limits) {
        if (!limits.equals(POWERS)) {
            double[] all = doubles(limits);
            return bucket < all.length ? all[bucket] : null;
        }
        if (bucket == 0) {
            return 0.0;
        }
        int number = Math.abs(bucket);
        if (number == NAN_BUCKET) {
            return null;
        }
        double limit = Math.scalb(1.0, number - EXPONENT_BIAS);
        return bucket < 0 ? -limit : limit;
    }

    private long[] integers(String limits) {
        if (!limits.equals(integersOf)) {
            String[] parts = limits.split(" ");
            integers = new long[parts.length];
            for (int i = 0; i < parts.length; i++) {
                integers[i] = Long.parseLong(parts[i]);
            }
            integersOf = limits;
        }
        return integers;
    }

    private double[] doubles(String limits) {
        if (!limits.equals(doublesOf)) {
            String[] parts = limits.split(" ");
            doubles = new double[parts.length];
            for (int i = 0; i < parts.length; i++) {
                doubles[i] = Double.parseDouble(parts[i]);
            }
            doublesOf = limits;
        }
        return doubles;
    }
}
