package weir.flink;

import org.apache.flink.table.functions.AggregateFunction;

/** {@code weir_double_quantile(x, q)}: weir's {@code quantile} of floats. */
public class DoubleQuantile extends AggregateFunction<Double, LogLinear.State> {
    @Override
    public LogLinear.State createAccumulator() {
        return new LogLinear.State();
    }

    /** Adds a value, unless it is NULL. */
    public void accumulate(LogLinear.State state, Double x, Double q) throws Exception {
        add(state, x, q, 1);
    }

    /** Removes a value that was added. */
    public void retract(LogLinear.State state, Double x, Double q) throws Exception {
        add(state, x, q, -1);
    }

    private static void add(LogLinear.State state, Double x, Double q, long weight)
            throws Exception {
        state.q = q;
        if (x != null) {
            long[] place = LogLinear.locate(x.doubleValue());
            LogLinear.add(state, (int) place[0], place[1], weight);
        }
    }

    /** Adds the states of parts of the group. */
    public void merge(LogLinear.State state, Iterable<LogLinear.State> parts) throws Exception {
        LogLinear.merge(state, parts);
    }

    @Override
    public Double getValue(LogLinear.State state) {
        try {
            long[] place = LogLinear.quantile(state);
            return place == null ? null : LogLinear.real((int) place[0], place[1]);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
