package weir.flink;

import org.apache.flink.table.annotation.DataTypeHint;
import org.apache.flink.table.annotation.FunctionHint;
import org.apache.flink.table.functions.AggregateFunction;
import org.apache.flink.types.Row;

/**
 * {@code weir_merged_top(state, k, NULL)}: weir's {@code top}, of partial aggregates. The third
 * argument is a NULL of the type of the values.
 */
public class MergedTop extends AggregateFunction<Row[], Ranking.State> {
    @Override
    public Ranking.State createAccumulator() {
        return new Ranking.State();
    }

    /** Adds a partial aggregate, unless it is NULL. */
    @FunctionHint(output = @DataTypeHint("ARRAY<ROW<`value` BIGINT, `count` BIGINT>>"))
    public void accumulate(Ranking.State state, byte[] partial, Integer k, Long type)
            throws Exception {
        add(state, partial, k, Ranking.INTEGER, 1);
    }

    /** Adds a partial aggregate, unless it is NULL. */
    @FunctionHint(output = @DataTypeHint("ARRAY<ROW<`value` DOUBLE, `count` BIGINT>>"))
    public void accumulate(Ranking.State state, byte[] partial, Integer k, Double type)
            throws Exception {
        add(state, partial, k, Ranking.FLOAT, 1);
    }

    /** Adds a partial aggregate, unless it is NULL. */
    @FunctionHint(output = @DataTypeHint("ARRAY<ROW<`value` BOOLEAN, `count` BIGINT>>"))
    public void accumulate(Ranking.State state, byte[] partial, Integer k, Boolean type)
            throws Exception {
        add(state, partial, k, Ranking.BOOLEAN, 1);
    }

    /** Adds a partial aggregate, unless it is NULL. */
    @FunctionHint(output = @DataTypeHint("ARRAY<ROW<`value` STRING, `count` BIGINT>>"))
    public void accumulate(Ranking.State state, byte[] partial, Integer k, String type)
            throws Exception {
        add(state, partial, k, Ranking.TEXT, 1);
    }

    /** Removes a partial aggregate that was added. */
    public void retract(Ranking.State state, byte[] partial, Integer k, Long type)
            throws Exception {
        add(state, partial, k, Ranking.INTEGER, -1);
    }

    /** Removes a partial aggregate that was added. */
    public void retract(Ranking.State state, byte[] partial, Integer k, Double type)
            throws Exception {
        add(state, partial, k, Ranking.FLOAT, -1);
    }

    /** Removes a partial aggregate that was added. */
    public void retract(Ranking.State state, byte[] partial, Integer k, Boolean type)
            throws Exception {
        add(state, partial, k, Ranking.BOOLEAN, -1);
    }

    /** Removes a partial aggregate that was added. */
    public void retract(Ranking.State state, byte[] partial, Integer k, String type)
            throws Exception {
        add(state, partial, k, Ranking.TEXT, -1);
    }

    private static void add(Ranking.State state, byte[] partial, Integer k, int type, long sign)
            throws Exception {
        Ranking.begin(state, type, k);
        Ranking.addPartial(state, partial, sign);
    }

    /** Adds the states of parts of the group. */
    public void merge(Ranking.State state, Iterable<Ranking.State> parts) throws Exception {
        Ranking.merge(state, parts);
    }

    @Override
    public Row[] getValue(Ranking.State state) {
        try {
            return Ranking.top(state);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
