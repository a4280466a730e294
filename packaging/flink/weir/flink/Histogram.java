package weir.flink;

import org.apache.flink.table.annotation.DataTypeHint;
import org.apache.flink.table.annotation.FunctionHint;
import org.apache.flink.table.functions.AggregateFunction;
import org.apache.flink.types.Row;

/**
 * {@code weir_histogram(x, limits)}: weir's {@code histogram}, as an array of limits with counts.
 */
public class Histogram extends AggregateFunction<Row[], Buckets.State> {
    private transient Buckets buckets = null;

    @Override
    public Buckets.State createAccumulator() {
        return new Buckets.State();
    }

    /** Adds a value, unless it is NULL. */
    @FunctionHint(output = @DataTypeHint("ARRAY<ROW<`value` BIGINT, `count` BIGINT>>"))
    public void accumulate(Buckets.State state, Long x, String limits) throws Exception {
        buckets().add(state, x, limits, 1);
    }

    /** Adds a value, unless it is NULL. */
    @FunctionHint(output = @DataTypeHint("ARRAY<ROW<`value` DOUBLE, `count` BIGINT>>"))
    public void accumulate(Buckets.State state, Double x, String limits) throws Exception {
        buckets().add(state, x, limits, 1);
    }

    /** Removes a value that was added. */
    public void retract(Buckets.State state, Long x, String limits) throws Exception {
        buckets().add(state, x, limits, -1);
    }

    /** Removes a value that was added. */
    public void retract(Buckets.State state, Double x, String limits) throws Exception {
        buckets().add(state, x, limits, -1);
    }

    /** Adds the states of parts of the group. */
    public void merge(Buckets.State state, Iterable<Buckets.State> parts) throws Exception {
        Buckets.merge(state, parts);
    }

    @Override
    public Row[] getValue(Buckets.State state) {
        try {
            return buckets().counts(state);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    /** Flink sends functions to its tasks as bytes, without this. */
    private Buckets buckets() {
        if (buckets == null) {
            buckets = new Buckets();
        }
        return buckets;
    }
}
