import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.CloseableIterator;

/**
 * Runs statements of Flink SQL in this process. Each line of standard input names a file with
 * statements, separated by a line {@code ;}, the last of which is a query. The rows of its result
 * are written to that name and {@code .rows}: {@code +} or {@code -} for a row that comes or goes,
 * then the values, after tabs. The answer is a line {@code DONE} or {@code ERROR message}.
 */
public final class FlinkRunner {
    /** A statement of Flink's SQL client, which is not one of the library. */
    private static final Pattern SETTING = Pattern.compile("SET '(.*)' = '(.*)'");

    public static void main(String[] args) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var answers = System.out;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                run(Path.of(line));
                answers.println("DONE");
            } catch (Throwable error) {
                answers.println("ERROR " + causes(error));
            }
            answers.flush();
        }
    }

    private static void run(Path file) throws Exception {
        var configuration = new Configuration();
        configuration.setString("state.backend.type", "hashmap");
        var environment =
                StreamExecutionEnvironment.createLocalEnvironment(1, configuration);
        var tables = StreamTableEnvironment.create(environment);
        String[] statements = Files.readString(file).split("\n;\n");
        for (int i = 0; i + 1 < statements.length; i++) {
            var setting = SETTING.matcher(statements[i]);
            if (setting.matches()) {
                tables.getConfig().set(setting.group(1), setting.group(2));
            } else {
                tables.executeSql(statements[i]).await();
            }
        }
        List<String> rows = new ArrayList<>();
        var result = tables.sqlQuery(statements[statements.length - 1]);
        // With the row before each update, which `TableResult.collect` may leave out.
        var changes = tables.toChangelogStream(result);
        try (CloseableIterator<Row> found = changes.executeAndCollect()) {
            while (found.hasNext()) {
                rows.add(text(found.next()));
            }
        }
        Files.write(Path.of(file + ".rows"), rows);
    }

    private static String text(Row row) {
        boolean goes =
                row.getKind() == RowKind.DELETE || row.getKind() == RowKind.UPDATE_BEFORE;
        var text = new StringBuilder(goes ? "-" : "+");
        for (int i = 0; i < row.getArity(); i++) {
            text.append('\t').append(text(row.getField(i)));
        }
        return text.toString();
    }

    /** NULL is {@code \N}; a time is in milliseconds; an array of rows is JSON. */
    private static String text(Object value) {
        if (value == null) {
            return "\\N";
        }
        if (value instanceof LocalDateTime time) {
            return String.valueOf(time.toInstant(ZoneOffset.UTC).toEpochMilli());
        }
        String plain = value instanceof Row[] rows ? json(rows) : value.toString();
        return plain
                .replace("\\", "\\\\")
                .replace("\t", "\\t")
                .replace("\n", "\\n");
    }

    /** Rows as arrays, floats as texts; only quotes and backslashes are escaped. */
    private static String json(Row[] rows) {
        List<String> parts = new ArrayList<>();
        for (Row row : rows) {
            List<String> values = new ArrayList<>();
            for (int i = 0; i < row.getArity(); i++) {
                Object value = row.getField(i);
                boolean isText = value instanceof String || value instanceof Double;
                String text = String.valueOf(value);
                values.add(isText ? quoted(text) : text);
            }
            parts.add("[" + String.join(",", values) + "]");
        }
        return "[" + String.join(",", parts) + "]";
    }

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    private static String causes(Throwable error) {
        var text = new StringBuilder();
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            text.append(cause).append("; ");
        }
        return text.toString().replace('\n', ' ');
    }
}
