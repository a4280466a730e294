package weir.flink;

import org.apache.flink.table.annotation.DataTypeHint;
import org.apache.flink.table.annotation.FunctionHint;
import org.apache.flink.table.functions.AggregateFunction;
import org.apache.flink.types.Row;

/**
 * {@code weir_merged_histogram(state, limits, NULL)}: weir's {@code histogram}, of partial
 * aggregates. The third argument is a NULL of the type of the values.
 */
public class MergedHistogram extends AggregateFunction<Row[], Buckets.State> {
    private transient Buckets buckets = null;

    @Override
    public Buckets.State createAccumulator() {
        return new Buckets.State();
    }

    /** Adds a partial aggregate, unless it is NULL. */
    @FunctionHint(output = @DataTypeHint("ARRAY<ROW<`value` BIGINT, `count` BIGINT>>"))
    public void accumulate(Buckets.State state, byte[] partial, String limits, Long type)
            throws Exception {
        add(state, partial, limits, false, 1);
    }

    /** Adds a partial aggregate, unless it is NULL. */
    @FunctionHint(output = @DataTypeHint("ARRAY<ROW<`value` DOUBLE, `count` BIGINT>>"))
    public void accumulate(Buckets.State state, byte[] partial, String limits, Double type)
            throws Exception {
        add(state, partial, limits, true, 1);
    }

    /** Removes a partial aggregate that was added. */
    public void retract(Buckets.State state, byte[] partial, String limits, Long type)
            throws Exception {
        add(state, partial, limits, false, -1);
    }

    /** Removes a partial aggregate that was added. */
    public void retract(Buckets.State state, byte[] partial, String limits, Double type)
            throws Exception {
        add(state, partial, limits, true, -1);
    }

    private static void add(
            Buckets.State state, byte[] partial, String limits, boolean real, long sign)
            throws Exception {
        Buckets.begin(state, real, limits);
        Buckets.addPartial(state, partial, sign);
    }

    /** Adds the states of parts of the group. */
    public void merge(Buckets.State state, Iterable<Buckets.State> parts) throws Exception {
        Buckets.merge(state, parts);
    }

    @Override
    public Row[] getValue(Buckets.State state) {
        try {
            if (buckets == null) {
                buckets = new Buckets();
            }
            return buckets.counts(state);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
