package weir.flink;

import org.apache.flink.table.functions.AggregateFunction;

/** {@code weir_merged_approx_count_distinct(state)}: of partial aggregates. */
public class MergedApproxCountDistinct
        extends AggregateFunction<Long, ApproxCountDistinct.State> {
    private final ApproxCountDistinct function = new ApproxCountDistinct();

    @Override
    public ApproxCountDistinct.State createAccumulator() {
        return function.createAccumulator();
    }

    /** Adds a partial aggregate, unless it is NULL. */
    public void accumulate(ApproxCountDistinct.State state, byte[] partial) throws Exception {
        add(state, partial, 1);
    }

    /** Removes a partial aggregate that was added. */
    public void retract(ApproxCountDistinct.State state, byte[] partial) throws Exception {
        add(state, partial, -1);
    }

    private static void add(ApproxCountDistinct.State state, byte[] bytes, long sign)
            throws Exception {
        if (bytes == null) {
            return;
        }
        var partial = new Partial(bytes);
        for (long left = partial.unsigned(); left > 0; left--) {
            int place = Math.toIntExact(partial.signed());
            ApproxCountDistinct.add(state, place, sign * partial.signed());
        }
        partial.end();
    }

    /** Adds the states of parts of the group. */
    public void merge(ApproxCountDistinct.State state, Iterable<ApproxCountDistinct.State> parts)
            throws Exception {
        function.merge(state, parts);
    }

    @Override
    public Long getValue(ApproxCountDistinct.State state) {
        return function.getValue(state);
    }
}
