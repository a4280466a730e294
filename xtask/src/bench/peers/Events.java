import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** The events of the benchmark, as `engine_bench` writes them: 40 bytes each, little-endian. */
final class Events {
    private static final int BYTES = 40;

    private final ByteBuffer buffer;

    Events(String path) throws IOException {
        try (FileChannel file = FileChannel.open(Path.of(path), StandardOpenOption.READ)) {
            buffer = file.map(FileChannel.MapMode.READ_ONLY, 0, file.size());
        }
        buffer.order(ByteOrder.LITTLE_ENDIAN);
    }

    int count() {
        return buffer.capacity() / BYTES;
    }

    long tsMicros(int row) {
        return buffer.getLong(row * BYTES);
    }

    long reqId(int row) {
        return buffer.getLong(row * BYTES + 8);
    }

    long sector(int row) {
        return buffer.getLong(row * BYTES + 16);
    }

    long agentTsMicros(int row) {
        return buffer.getLong(row * BYTES + 24);
    }

    int sectors(int row) {
        return buffer.getInt(row * BYTES + 32);
    }

    /** `Q` or `R`. */
    char type(int row) {
        return (char) buffer.get(row * BYTES + 36);
    }

    /** `R` or `W`. */
    char op(int row) {
        return (char) buffer.get(row * BYTES + 37);
    }

    int vm(int row) {
        return buffer.get(row * BYTES + 38);
    }

    int vdisk(int row) {
        return buffer.get(row * BYTES + 39);
    }
}
