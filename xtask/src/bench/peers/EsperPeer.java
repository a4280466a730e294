import com.espertech.esper.common.client.configuration.Configuration;
import com.espertech.esper.compiler.client.CompilerArguments;
import com.espertech.esper.compiler.client.EPCompilerProvider;
import com.espertech.esper.runtime.client.EPRuntimeProvider;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * The queries of the benchmark in Esper: objects as events, one at a time, time from the events,
 * neither timer nor lock.
 */
public final class EsperPeer {
    private static final String SIDES =
            "from Event(type = 'Q')#ext_timed(ts, 3 sec) as Q,"
                    + " Event(type = 'R')#ext_timed(ts, 3 sec) as R"
                    + " where Q.reqId = R.reqId and Q.vm = R.vm and Q.vdisk = R.vdisk";

    private static final Map<String, String> QUERIES = Map.of(
            "F", "select * from Event(type = 'Q')",
            "f", "select * from Event(vm = 'vm3')",
            "S", "select sum(sectors) from Event",
            "G", "select irstream vm, vdisk, op, count(*), avg(sectors)"
                    + " from Event#ext_timed(ts, 3 sec) group by vm, vdisk, op",
            "J", "select irstream Q.reqId, R.ts - Q.ts " + SIDES,
            "M", "select irstream Q.vm, Q.vdisk, avg(R.ts - Q.ts) " + SIDES
                    + " group by Q.vm, Q.vdisk");

    /** An event; its getters are its properties. */
    public static final class Event {
        private long ts;
        private long reqId;
        private long sector;
        private int sectors;
        private String type;
        private String op;
        private String vm;
        private String vdisk;

        public long getTs() {
            return ts;
        }

        public long getReqId() {
            return reqId;
        }

        public long getSector() {
            return sector;
        }

        public int getSectors() {
            return sectors;
        }

        public String getType() {
            return type;
        }

        public String getOp() {
            return op;
        }

        public String getVm() {
            return vm;
        }

        public String getVdisk() {
            return vdisk;
        }
    }

    public static void main(String[] args) throws Exception {
        Event[] events = read(new Events(args[0]));
        Peer.serve((query, count) -> run(QUERIES.get(query), events, count));
    }

    private static Event[] read(Events source) {
        Event[] events = new Event[source.count()];
        for (int row = 0; row < events.length; row++) {
            Event event = new Event();
            event.ts = source.tsMicros(row);
            event.reqId = source.reqId(row);
            event.sector = source.sector(row);
            event.sectors = source.sectors(row);
            event.type = String.valueOf(source.type(row)).intern();
            event.op = String.valueOf(source.op(row)).intern();
            event.vm = ("vm" + source.vm(row)).intern();
            event.vdisk = ("/dev/vd" + (char) ('a' + source.vdisk(row))).intern();
            events[row] = event;
        }
        return events;
    }

    private static long run(String query, Event[] events, int count) throws Exception {
        var configuration = new Configuration();
        configuration.getCommon().addEventType("Event", Event.class);
        configuration.getCommon().getTimeSource().setTimeUnit(TimeUnit.MICROSECONDS);
        configuration.getRuntime().getThreading().setInternalTimerEnabled(false);
        configuration.getRuntime().getThreading().setListenerDispatchPreserveOrder(false);
        configuration.getRuntime().getThreading().setInsertIntoDispatchPreserveOrder(false);
        configuration.getRuntime().getExecution().setDisableLocking(true);
        var runtime = EPRuntimeProvider.getRuntime("benchmark", configuration);
        runtime.initialize();
        var module =
                EPCompilerProvider.getCompiler()
                        .compile(query, new CompilerArguments(configuration));
        long[] rows = {0};
        for (var statement : runtime.getDeploymentService().deploy(module).getStatements()) {
            statement.addListener(
                    (inserted, removed, of, by) -> {
                        rows[0] += inserted == null ? 0 : inserted.length;
                        rows[0] += removed == null ? 0 : removed.length;
                    });
        }
        var sender = runtime.getEventService().getEventSender("Event");
        for (int row = 0; row < count; row++) {
            sender.sendEvent(events[row]);
        }
        runtime.destroy();
        return rows[0];
    }
}
