package weir.flink;

import org.apache.flink.table.annotation.DataTypeHint;
import org.apache.flink.table.annotation.FunctionHint;
import org.apache.flink.table.functions.AggregateFunction;
import org.apache.flink.types.Row;

/** {@code weir_top(x, k)}: weir's {@code top}, as an array of values with their counts. */
public class Top extends AggregateFunction<Row[], Ranking.State> {
    @Override
    public Ranking.State createAccumulator() {
        return new Ranking.State();
    }

    /** Adds a value, unless it is NULL. */
    @FunctionHint(output = @DataTypeHint("ARRAY<ROW<`value` BIGINT, `count` BIGINT>>"))
    public void accumulate(Ranking.State state, Long x, Integer k) throws Exception {
        add(state, x, k, 1);
    }

    /** Adds a value, unless it is NULL. */
    @FunctionHint(output = @DataTypeHint("ARRAY<ROW<`value` DOUBLE, `count` BIGINT>>"))
    public void accumulate(Ranking.State state, Double x, Integer k) throws Exception {
        add(state, x, k, 1);
    }

    /** Adds a value, unless it is NULL. */
    @FunctionHint(output = @DataTypeHint("ARRAY<ROW<`value` BOOLEAN, `count` BIGINT>>"))
    public void accumulate(Ranking.State state, Boolean x, Integer k) throws Exception {
        add(state, x, k, 1);
    }

    /** Adds a value, unless it is NULL. */
    @FunctionHint(output = @DataTypeHint("ARRAY<ROW<`value` STRING, `count` BIGINT>>"))
    public void accumulate(Ranking.State state, String x, Integer k) throws Exception {
        add(state, x, k, 1);
    }

    /** Removes a value that was added. */
    public void retract(Ranking.State state, Long x, Integer k) throws Exception {
        add(state, x, k, -1);
    }

    /** Removes a value that was added. */
    public void retract(Ranking.State state, Double x, Integer k) throws Exception {
        add(state, x, k, -1);
    }

    /** Removes a value that was added. */
    public void retract(Ranking.State state, Boolean x, Integer k) throws Exception {
        add(state, x, k, -1);
    }

    /** Removes a value that was added. */
    public void retract(Ranking.State state, String x, Integer k) throws Exception {
        add(state, x, k, -1);
    }

    private static void add(Ranking.State state, Long x, Integer k, long weight)
            throws Exception {
        Ranking.begin(state, Ranking.INTEGER, k);
        if (x != null) {
            Ranking.add(state.numbers, x, weight);
        }
    }

    private static void add(Ranking.State state, Double x, Integer k, long weight)
            throws Exception {
        Ranking.begin(state, Ranking.FLOAT, k);
        if (x != null) {
            Ranking.add(state.numbers, Ranking.bits(x), weight);
        }
    }

    private static void add(Ranking.State state, Boolean x, Integer k, long weight)
            throws Exception {
        Ranking.begin(state, Ranking.BOOLEAN, k);
        if (x != null) {
            Ranking.add(state.numbers, x ? 1L : 0L, weight);
        }
    }

    private static void add(Ranking.State state, String x, Integer k, long weight)
            throws Exception {
        Ranking.begin(state, Ranking.TEXT, k);
        if (x != null) {
            Ranking.add(state.texts, x, weight);
        }
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
