package weir.flink;

import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.table.api.dataview.MapView;

/**
 * Counts in buckets of equal relative width: the sketch of weir's {@code quantile}, with the same
 * buckets, so that the result is the same number.
 *
 * <p>Each power of two is divided into 128 buckets. A bucket has the number of its values and the
 * sum of their offsets in it, whose mean represents them. Counts and offsets are sums, so states of
 * parts of a group are merged by adding them.
 */
final class LogLinear {
    /** Buckets per power of two, as a power of two. */
    private static final int BITS = 7;

    /** The version of a histogram in a partial aggregate. */
    private static final int VERSION = 1;

    /** Bits of an offset; wider buckets drop the lowest bits. */
    private static final int OFFSET_BITS = 32;

    private static final long OFFSET_MAX = (1L << OFFSET_BITS) - 1;

    /** Bits of the fraction of a double. */
    private static final int FRACTION_BITS = 52;

    /** The state of a group. */
    public static class State {
        /** The fraction that is asked for. */
        public Double q = null;

        /** The number of values of each bucket. */
        public MapView<Integer, Long> counts = new MapView<>();

        /** The sum of the offsets of each bucket. */
        public MapView<Integer, Long> offsets = new MapView<>();
    }

    private LogLinear() {}

    /** Adds {@code weight} values to a bucket. */
    static void add(State state, int bucket, long offset, long weight) throws Exception {
        addBucket(state, bucket, weight, offset * weight);
    }

    /** Adds values that were counted elsewhere to a bucket. */
    private static void addBucket(State state, int bucket, long values, long offsets)
            throws Exception {
        Long count = state.counts.get(bucket);
        Long sum = state.offsets.get(bucket);
        long counted = (count == null ? 0 : count) + values;
        long summed = (sum == null ? 0 : sum) + offsets;
        if (counted == 0 && summed == 0) {
            state.counts.remove(bucket);
            state.offsets.remove(bucket);
        } else {
            state.counts.put(bucket, counted);
            state.offsets.put(bucket, summed);
        }
    }

    /** Adds a partial aggregate {@code sign} times, unless it is NULL. */
    static void addPartial(State state, byte[] bytes, Double q, long sign) throws Exception {
        state.q = q;
        if (bytes == null) {
            return;
        }
        var partial = new Partial(bytes);
        partial.expect(VERSION, "version of a histogram");
        partial.expect(BITS, "width of buckets");
        long bucket = 0;
        for (long left = partial.unsigned(); left > 0; left--) {
            bucket += partial.signed();
            long count = partial.signed();
            long offsets = partial.signed();
            addBucket(state, Math.toIntExact(bucket), sign * count, sign * offsets);
        }
        partial.end();
    }

    /** Adds the states of parts of the group. */
    static void merge(State state, Iterable<State> parts) throws Exception {
        for (State part : parts) {
            if (part.q != null) {
                state.q = part.q;
            }
            for (Map.Entry<Integer, Long> entry : part.counts.entries()) {
                int bucket = entry.getKey();
                Long offsets = part.offsets.get(bucket);
                addBucket(state, bucket, entry.getValue(), offsets == null ? 0 : offsets);
            }
        }
    }

    /** The bucket with the value of the nearest rank, and the mean offset in it; null without. */
    static long[] quantile(State state) throws Exception {
        var sorted = new TreeMap<Integer, Long>();
        long total = 0;
        for (Map.Entry<Integer, Long> entry : state.counts.entries()) {
            sorted.put(entry.getKey(), entry.getValue());
            total += entry.getValue();
        }
        if (total <= 0) {
            return null;
        }
        long left = rank(state.q, total);
        for (Map.Entry<Integer, Long> entry : sorted.entrySet()) {
            long here = Math.max(entry.getValue(), 0);
            if (left < here) {
                long sum = state.offsets.get(entry.getKey());
                long mean = Math.floorDiv(sum, entry.getValue());
                return new long[] {entry.getKey(), Math.max(0, Math.min(mean, OFFSET_MAX))};
            }
            left -= here;
        }
        return null;
    }

    /**
     * The nearest rank of {@code q}, from 0. A product within rounding error of an integer counts
     * as that integer: 0.07 of 100 is 7, not 8.
     */
    private static long rank(double q, long total) {
        double product = q * total;
        double whole = Math.floor(product + 0.5);
        boolean near = Math.abs(product - whole) <= whole * 4.0 * Math.ulp(1.0);
        long rank = (long) (near ? whole : Math.ceil(product));
        return Math.max(1, Math.min(rank, total)) - 1;
    }

    /** The bucket of an integer and its offset. */
    static long[] locate(long value) {
        long magnitude = Math.abs(value);
        int shift = Math.max(63 - Long.numberOfLeadingZeros(magnitude | 1) - BITS, 0);
        long bucket = ((long) shift << BITS) + (magnitude >>> shift);
        long inside = magnitude & ((1L << shift) - 1);
        long offset = inside >>> Math.max(shift - OFFSET_BITS, 0);
        return new long[] {value < 0 ? -bucket : bucket, offset};
    }

    /** The integer with this bucket and offset. */
    static long integer(int bucket, long offset) {
        int number = Math.abs(bucket);
        int shift = Math.max((number >>> BITS) - 1, 0);
        long low = (number - ((long) shift << BITS)) << shift;
        long inside = offset << Math.max(shift - OFFSET_BITS, 0);
        long magnitude = low + Math.min(inside, (1L << shift) - 1);
        if (bucket < 0) {
            return -magnitude;
        }
        // The magnitude of the least integer is not one.
        return magnitude < 0 ? Long.MAX_VALUE : magnitude;
    }

    /** The bucket of a double and its offset. */
    static long[] locate(double value) {
        double x = Double.isNaN(value) ? Double.NaN : value;
        long magnitude = Double.doubleToLongBits(Math.abs(x));
        long bucket = magnitude >>> (FRACTION_BITS - BITS);
        long inside = magnitude & ((1L << (FRACTION_BITS - BITS)) - 1);
        long offset = inside >>> Math.max(FRACTION_BITS - BITS - OFFSET_BITS, 0);
        return new long[] {x < 0 ? -1 - bucket : bucket, offset};
    }

    /** The double with this bucket and offset. */
    static double real(int bucket, long offset) {
        long number = bucket < 0 ? -1L - bucket : bucket;
        long inside = offset << Math.max(FRACTION_BITS - BITS - OFFSET_BITS, 0);
        inside = Math.min(inside, (1L << (FRACTION_BITS - BITS)) - 1);
        long low = number << (FRACTION_BITS - BITS);
        long infinity = Double.doubleToLongBits(Double.POSITIVE_INFINITY);
        double x;
        if (low < infinity) {
            x = Double.longBitsToDouble(low + inside);
        } else {
            x = low == infinity ? Double.POSITIVE_INFINITY : Double.NaN;
        }
        return bucket < 0 ? -x : x;
    }
}
