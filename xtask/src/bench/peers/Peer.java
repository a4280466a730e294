import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;

/**
 * Runs a query for each line on standard input, its name and the number of events, and prints the
 * number of its rows, processor and wall time.
 */
final class Peer {
    /** Runs the query of a name over the first events, and returns the number of its rows. */
    interface Run {
        long of(String query, int events) throws Exception;
    }

    static void serve(Run run) throws Exception {
        var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            // The garbage of one query is not collected in the time of the next one.
            System.gc();
            long processor = system.getProcessCpuTime();
            long wall = System.nanoTime();
            long rows = run.of(words[0], Integer.parseInt(words[1]));
            wall = System.nanoTime() - wall;
            processor = system.getProcessCpuTime() - processor;
            System.out.println("RESULT " + rows + " " + processor + " " + wall);
            System.out.flush();
        }
    }
}
