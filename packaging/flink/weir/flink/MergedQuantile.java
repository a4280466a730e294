package weir.flink;

import org.apache.flink.table.functions.AggregateFunction;

/** {@code weir_merged_quantile(state, q)}: weir's {@code quantile} of integers, merged. */
public class MergedQuantile extends AggregateFunction<Long, LogLinear.State> {
    @Override
    public LogLinear.State createAccumulator() {
        return new LogLinear.State();
    }

    /** Adds a partial aggregate, unless it is NULL. */
    public void accumulate(LogLinear.State state, byte[] partial, Double q) throws Exception {
        LogLinear.addPartial(state, partial, q, 1);
    }

    /** Removes a partial aggregate that was added. */
    public void retract(LogLinear.State state, byte[] partial, Double q) throws Exception {
        LogLinear.addPartial(state, partial, q, -1);
    }

    /** Adds the states of parts of the group. */
    public void merge(LogLinear.State state, Iterable<LogLinear.State> parts) throws Exception {
        LogLinear.merge(state, parts);
    }

    @Override
    public Long getValue(LogLinear.State state) {
        try {
            long[] place = LogLinear.quantile(state);
            return place == null ? null : LogLinear.integer((int) place[0], place[1]);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
