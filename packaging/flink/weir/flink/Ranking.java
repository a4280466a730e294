package weir.flink;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Map;
import java.util.PriorityQueue;
import org.apache.flink.table.api.dataview.MapView;
import org.apache.flink.types.Row;

/**
 * Values with their counts, the most frequent first: the state of weir's {@code top}.
 *
 * <p>Of equally frequent values the least is first: false before true, NaN after all numbers, texts
 * in the order of their bytes. States of parts of a group are merged by adding the counts.
 */
final class Ranking {
    /** The type of the values. */
    static final int INTEGER = 1;

    static final int FLOAT = 2;
    static final int BOOLEAN = 3;
    static final int TEXT = 4;

    /** The state of a group. */
    public static class State {
        /** The type of the values; null before the first row. */
        public Integer type = null;

        /** How many values are asked for. */
        public Integer k = null;

        /** The counts of integers, of floats by their bits, and of booleans as 0 and 1. */
        public MapView<Long, Long> numbers = new MapView<>();

        /** The counts of texts. */
        public MapView<String, Long> texts = new MapView<>();
    }

    /** A value and its count. */
    private static final class Entry implements Comparable<Entry> {
        private final int type;
        private final Object value;
        private final long count;

        Entry(int type, Object value, long count) {
            this.type = type;
            this.value = value;
            this.count = count;
        }

        /** The order of the result. */
        @Override
        public int compareTo(Entry other) {
            return count == other.count
                    ? compareValues(type, value, other.value)
                    : Long.compare(other.count, count);
        }
    }

    private Ranking() {}

    /** States what the values are. */
    static void begin(State state, int type, Integer k) {
        state.type = type;
        state.k = k;
    }

    /** Adds {@code weight} to the count of a key. */
    static <K> void add(MapView<K, Long> counts, K key, long weight) throws Exception {
        Long count = counts.get(key);
        long sum = (count == null ? 0 : count) + weight;
        if (sum == 0) {
            counts.remove(key);
        } else {
            counts.put(key, sum);
        }
    }

    /** The key of a float: there is one zero and one NaN. */
    static long bits(double x) {
        return Double.doubleToLongBits(x + 0.0);
    }

    /** Adds a partial aggregate {@code sign} times, unless it is NULL. */
    static void addPartial(State state, byte[] bytes, long sign) throws Exception {
        if (bytes == null) {
            return;
        }
        var partial = new Partial(bytes);
        for (long left = partial.unsigned(); left > 0; left--) {
            if (state.type == TEXT) {
                String text = partial.text();
                add(state.texts, text, sign * partial.signed());
            } else {
                long key = key(state.type, partial);
                add(state.numbers, key, sign * partial.signed());
            }
        }
        partial.end();
    }

    private static long key(int type, Partial partial) {
        switch (type) {
            case FLOAT:
                return bits(partial.real());
            case BOOLEAN:
                return partial.bool() ? 1 : 0;
            default:
                return partial.signed();
        }
    }

    /** Adds the states of parts of the group. */
    static void merge(State state, Iterable<State> parts) throws Exception {
        for (State part : parts) {
            if (part.type != null) {
                begin(state, part.type, part.k);
            }
            for (Map.Entry<Long, Long> entry : part.numbers.entries()) {
                add(state.numbers, entry.getKey(), entry.getValue());
            }
            for (Map.Entry<String, Long> entry : part.texts.entries()) {
                add(state.texts, entry.getKey(), entry.getValue());
            }
        }
    }

    /** The most frequent values with their counts; null without values. */
    static Row[] top(State state) throws Exception {
        if (state.type == null) {
            return null;
        }
        // The last of those that were found is at the head.
        var found = new PriorityQueue<Entry>(Comparator.reverseOrder());
        for (Map.Entry<Long, Long> entry : state.numbers.entries()) {
            Object value = value(state.type, entry.getKey());
            keep(found, state.k, new Entry(state.type, value, entry.getValue()));
        }
        for (Map.Entry<String, Long> entry : state.texts.entries()) {
            keep(found, state.k, new Entry(TEXT, entry.getKey(), entry.getValue()));
        }
        Row[] rows = new Row[found.size()];
        for (int i = rows.length - 1; i >= 0; i--) {
            Entry entry = found.poll();
            rows[i] = Row.of(entry.value, entry.count);
        }
        return rows.length == 0 ? null : rows;
    }

    private static void keep(PriorityQueue<Entry> found, int k, Entry entry) {
        if (entry.count <= 0) {
            return;
        }
        found.add(entry);
        if (found.size() > k) {
            found.poll();
        }
    }

    private static Object value(int type, long key) {
        switch (type) {
            case FLOAT:
                return Double.longBitsToDouble(key);
            case BOOLEAN:
                return key != 0;
            default:
                return key;
        }
    }

    private static int compareValues(int type, Object a, Object b) {
        switch (type) {
            case FLOAT:
                return Double.compare((Double) a, (Double) b);
            case BOOLEAN:
                return Boolean.compare((Boolean) a, (Boolean) b);
            case TEXT:
                byte[] text = ((String) a).getBytes(StandardCharsets.UTF_8);
                return Arrays.compareUnsigned(text, ((String) b).getBytes(StandardCharsets.UTF_8));
            default:
                return Long.compare((Long) a, (Long) b);
        }
    }
}
