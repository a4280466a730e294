import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.legacy.table.connector.source.SourceFunctionProvider;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.legacy.SinkFunction;
import org.apache.flink.streaming.api.functions.source.legacy.SourceFunction;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.sink.legacy.SinkFunctionProvider;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.ScanTableSource;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.factories.DynamicTableSinkFactory;
import org.apache.flink.table.factories.DynamicTableSourceFactory;

/**
 * The queries of the benchmark in Flink SQL: one process, parallelism 1, state in memory, objects
 * reused, no checkpoints. Event time has milliseconds there. A window is an OVER window, a join an
 * interval join, since Flink has no window that is a relation; so nothing is retracted.
 */
public final class FlinkPeer {
    private static final String JOIN =
            "from (select * from events where type = 'Q') q,"
                    + " (select * from events where type = 'R') r"
                    + " where q.req_id = r.req_id and q.vm = r.vm and q.vdisk = r.vdisk"
                    + " and r.rt between q.rt - interval '3' second and q.rt + interval '3' second";

    private static final Map<String, String> QUERIES = Map.of(
            "F", "select * from events where type = 'Q'",
            "f", "select * from events where vm = 'vm3'",
            "S", "select sum(sectors) from events",
            "G", "select vm, vdisk, op, count(*) over w, avg(sectors) over w from events"
                    + " window w as (partition by vm, vdisk, op order by rt"
                    + " range between interval '3' second preceding and current row)",
            "J", "select q.req_id, r.ts - q.ts " + JOIN,
            "M", "select vm, vdisk, avg(latency) over w from ("
                    + "select q.vm, q.vdisk, r.ts - q.ts as latency, r.rt " + JOIN + ")"
                    + " window w as (partition by vm, vdisk order by rt"
                    + " range between interval '3' second preceding and current row)");

    private static final String COLUMNS =
            "ts bigint, type string, op string, req_id bigint, sector bigint, sectors int,"
                    + " vm string, vdisk string, agent_ts bigint, rt timestamp(3),"
                    + " watermark for rt as rt - interval '0.001' second";

    private static final AtomicLong ROWS = new AtomicLong();
    private static String path;
    private static int count;

    public static void main(String[] args) throws Exception {
        path = args[0];
        Peer.serve(FlinkPeer::run);
    }

    private static long run(String query, int events) throws Exception {
        count = events;
        var configuration = new Configuration();
        configuration.setString("table.exec.resource.default-parallelism", "1");
        configuration.setString("pipeline.object-reuse", "true");
        configuration.setString("state.backend.type", "hashmap");
        var environment =
                StreamExecutionEnvironment.createLocalEnvironment(1, configuration);
        var tables = StreamTableEnvironment.create(environment);
        tables.executeSql(
                "create table events (" + COLUMNS + ") with ('connector' = 'benchmark')");
        var result = tables.sqlQuery(QUERIES.get(query));
        ROWS.set(0);
        tables.createTemporaryView("answer", result);
        var columns = new StringBuilder();
        for (var column : result.getResolvedSchema().getColumns()) {
            columns.append(columns.isEmpty() ? "" : ", ");
            columns.append('`').append(column.getName()).append("` ");
            var type = column.getDataType().getLogicalType().copy(true);
            columns.append(type.asSerializableString());
        }
        tables.executeSql(
                "create table counted (" + columns + ") with ('connector' = 'benchmark')");
        tables.executeSql("insert into counted select * from answer").await();
        return ROWS.get();
    }

    /** The connector of both tables. */
    public static final class Connector
            implements DynamicTableSourceFactory, DynamicTableSinkFactory {
        @Override
        public String factoryIdentifier() {
            return "benchmark";
        }

        @Override
        public Set<ConfigOption<?>> requiredOptions() {
            return Set.of();
        }

        @Override
        public Set<ConfigOption<?>> optionalOptions() {
            return Set.of();
        }

        @Override
        public DynamicTableSource createDynamicTableSource(Context context) {
            return new EventTable();
        }

        @Override
        public DynamicTableSink createDynamicTableSink(Context context) {
            return new CountedTable();
        }
    }

    private static final class EventTable implements ScanTableSource {
        @Override
        public ChangelogMode getChangelogMode() {
            return ChangelogMode.insertOnly();
        }

        @Override
        public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
            return SourceFunctionProvider.of(new EventSource(path, count), true);
        }

        @Override
        public DynamicTableSource copy() {
            return new EventTable();
        }

        @Override
        public String asSummaryString() {
            return "events";
        }
    }

    private static final class EventSource implements SourceFunction<RowData> {
        private final String path;
        private final int count;
        private volatile boolean running = true;

        EventSource(String path, int count) {
            this.path = path;
            this.count = count;
        }

        @Override
        public void run(SourceContext<RowData> context) throws Exception {
            Events events = new Events(path);
            StringData[] letters = new StringData[128];
            for (char letter : "QRW".toCharArray()) {
                letters[letter] = StringData.fromString(String.valueOf(letter));
            }
            StringData[] vms = new StringData[16];
            StringData[] vdisks = new StringData[16];
            for (int i = 0; i < 16; i++) {
                vms[i] = StringData.fromString("vm" + i);
                vdisks[i] = StringData.fromString("/dev/vd" + (char) ('a' + i));
            }
            for (int row = 0; row < count && running; row++) {
                long ts = events.tsMicros(row);
                context.collect(
                        GenericRowData.of(
                                ts,
                                letters[events.type(row)],
                                letters[events.op(row)],
                                events.reqId(row),
                                events.sector(row),
                                events.sectors(row),
                                vms[events.vm(row)],
                                vdisks[events.vdisk(row)],
                                events.agentTsMicros(row),
                                TimestampData.fromEpochMillis(ts / 1000)));
            }
        }

        @Override
        public void cancel() {
            running = false;
        }
    }

    private static final class CountedTable implements DynamicTableSink {
        @Override
        public ChangelogMode getChangelogMode(ChangelogMode requested) {
            return requested;
        }

        @Override
        public SinkRuntimeProvider getSinkRuntimeProvider(Context context) {
            return SinkFunctionProvider.of(new Count(), 1);
        }

        @Override
        public DynamicTableSink copy() {
            return new CountedTable();
        }

        @Override
        public String asSummaryString() {
            return "counted";
        }
    }

    private static final class Count implements SinkFunction<RowData> {
        @Override
        public void invoke(RowData row, Context context) {
            ROWS.lazySet(ROWS.get() + 1);
        }
    }
}
