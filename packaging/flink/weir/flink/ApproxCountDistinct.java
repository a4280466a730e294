package weir.flink;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.flink.table.api.dataview.MapView;
import org.apache.flink.table.functions.AggregateFunction;

/**
 * {@code weir_approx_count_distinct(x)}: weir's function of that name.
 *
 * <p>HyperLogLog (Flajolet, Fusy, Gandouet and Meunier 2007) with 2048 registers and the estimator
 * of Ertl (2017, "New cardinality estimation algorithms for HyperLogLog sketches", section 3). Each
 * rank of a register has a count, so that values can be retracted and states merged by adding.
 */
public class ApproxCountDistinct extends AggregateFunction<Long, ApproxCountDistinct.State> {
    private static final int BITS = 11;
    private static final int REGISTERS = 1 << BITS;

    /** One more than the bits of a hash that do not select the register. */
    private static final int RANK_MAX = 64 - BITS + 1;

    /** More than the ranks of a register. */
    private static final int RANKS = 64;

    /** The state of a group. */
    public static class State {
        /** The number of values of each register and rank. */
        public MapView<Integer, Long> counts = new MapView<>();
    }

    @Override
    public State createAccumulator() {
        return new State();
    }

    /** Adds a value, unless it is NULL. */
    public void accumulate(State state, Long x) throws Exception {
        add(state, x == null ? null : place(x), 1);
    }

    /** Adds a value, unless it is NULL. */
    public void accumulate(State state, Double x) throws Exception {
        add(state, x == null ? null : place(bits(x)), 1);
    }

    /** Adds a value, unless it is NULL. */
    public void accumulate(State state, Boolean x) throws Exception {
        add(state, x == null ? null : place(x ? 1 : 0), 1);
    }

    /** Adds a value, unless it is NULL. */
    public void accumulate(State state, String x) throws Exception {
        add(state, x == null ? null : place(number(x)), 1);
    }

    /** Removes a value that was added. */
    public void retract(State state, Long x) throws Exception {
        add(state, x == null ? null : place(x), -1);
    }

    /** Removes a value that was added. */
    public void retract(State state, Double x) throws Exception {
        add(state, x == null ? null : place(bits(x)), -1);
    }

    /** Removes a value that was added. */
    public void retract(State state, Boolean x) throws Exception {
        add(state, x == null ? null : place(x ? 1 : 0), -1);
    }

    /** Removes a value that was added. */
    public void retract(State state, String x) throws Exception {
        add(state, x == null ? null : place(number(x)), -1);
    }

    /** Adds the states of parts of the group. */
    public void merge(State state, Iterable<State> parts) throws Exception {
        for (State part : parts) {
            for (Map.Entry<Integer, Long> entry : part.counts.entries()) {
                add(state, entry.getKey(), entry.getValue());
            }
        }
    }

    /** Adds {@code weight} values of a register and rank; none for null. */
    static void add(State state, Integer place, long weight) throws Exception {
        if (place == null) {
            return;
        }
        Long count = state.counts.get(place);
        long sum = (count == null ? 0 : count) + weight;
        if (sum == 0) {
            state.counts.remove(place);
        } else {
            state.counts.put(place, sum);
        }
    }

    @Override
    public Long getValue(State state) {
        byte[] registers = new byte[REGISTERS];
        try {
            for (Map.Entry<Integer, Long> entry : state.counts.entries()) {
                int register = entry.getKey() / RANKS;
                int rank = entry.getKey() % RANKS;
                if (entry.getValue() > 0) {
                    registers[register] = (byte) Math.max(registers[register], rank);
                }
            }
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
        return (long) Math.floor(estimate(registers) + 0.5);
    }

    private static double estimate(byte[] registers) {
        int[] counts = new int[RANK_MAX + 1];
        for (byte rank : registers) {
            counts[rank]++;
        }
        double m = REGISTERS;
        double z = m * tau(1.0 - counts[RANK_MAX] / m);
        for (int rank = RANK_MAX - 1; rank > 0; rank--) {
            z = 0.5 * (z + counts[rank]);
        }
        z += m * sigma(counts[0] / m);
        return m * m / (2.0 * Math.log(2.0) * z);
    }

    private static double sigma(double x) {
        if (x >= 1.0) {
            return Double.POSITIVE_INFINITY;
        }
        double sum = x;
        double factor = 1.0;
        while (true) {
            x *= x;
            double before = sum;
            sum += x * factor;
            factor += factor;
            if (sum == before) {
                return sum;
            }
        }
    }

    private static double tau(double x) {
        if (x <= 0.0 || x >= 1.0) {
            return 0.0;
        }
        double sum = 1.0 - x;
        double factor = 1.0;
        while (true) {
            x = Math.sqrt(x);
            double before = sum;
            factor *= 0.5;
            sum -= (1.0 - x) * (1.0 - x) * factor;
            if (sum == before) {
                return sum / 3.0;
            }
        }
    }

    /** The register of a key and its rank there, as one number. */
    private static int place(long key) {
        long hash = mix(key);
        // The lowest bit set bounds the rank, in place of the bits that selected the register.
        long rest = (hash << BITS) | 1L << (BITS - 1);
        int rank = Long.numberOfLeadingZeros(rest) + 1;
        return (int) (hash >>> (64 - BITS)) * RANKS + rank;
    }

    /** The finalizer of MurmurHash3 (Austin Appleby), after a constant for the key 0. */
    private static long mix(long key) {
        key ^= 0x9e3779b97f4a7c15L;
        key ^= key >>> 33;
        key *= 0xff51afd7ed558ccdL;
        key ^= key >>> 33;
        key *= 0xc4ceb9fe1a85ec53L;
        return key ^ key >>> 33;
    }

    /** There is one zero and one NaN. */
    private static long bits(double x) {
        return Double.doubleToLongBits(x + 0.0);
    }

    /** FNV-1a (Fowler, Noll and Vo) of a text. */
    private static long number(String text) {
        long hash = 0xcbf29ce484222325L;
        for (byte b : text.getBytes(StandardCharsets.UTF_8)) {
            hash = (hash ^ (b & 0xff)) * 0x100000001b3L;
        }
        return hash;
    }
}
