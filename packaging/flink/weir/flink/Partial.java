package weir.flink;

import java.nio.charset.StandardCharsets;

/**
 * Reads the state of an aggregate as weir's agents send it: integers as LEB128, signed ones in
 * zigzag form, floats as 8 bytes with the least significant first, texts after their length.
 */
final class Partial {
    /** The version of all states. */
    private static final int VERSION = 1;

    private final byte[] bytes;
    private int at = 0;

    /** Reads {@code bytes}, after the version. */
    Partial(byte[] bytes) {
        this.bytes = bytes;
        expect(VERSION, "version");
    }

    /** Reads a byte that has only one valid value. */
    void expect(int value, String what) {
        int found = next();
        if (found != value) {
            throw new IllegalArgumentException(
                    "a partial aggregate of another " + what + ": " + found + ", not " + value);
        }
    }

    /** The next integer without sign. */
    long unsigned() {
        long value = 0;
        for (int shift = 0; shift < 64; shift += 7) {
            int next = next();
            value |= (next & 0x7fL) << shift;
            if (next < 0x80) {
                return value;
            }
        }
        throw new IllegalArgumentException("a number in a partial aggregate is too long");
    }

    /** The next integer. */
    long signed() {
        long value = unsigned();
        return value >>> 1 ^ -(value & 1);
    }

    /** The next float. */
    double real() {
        long bits = 0;
        for (int shift = 0; shift < 64; shift += 8) {
            bits |= (long) next() << shift;
        }
        return Double.longBitsToDouble(bits);
    }

    /** The next boolean. */
    boolean bool() {
        return next() != 0;
    }

    /** The next text. */
    String text() {
        long length = unsigned();
        if (length < 0 || length > bytes.length - at) {
            throw new IllegalArgumentException("a partial aggregate is too short");
        }
        var text = new String(bytes, at, (int) length, StandardCharsets.UTF_8);
        at += (int) length;
        return text;
    }

    /** Fails unless all bytes were read. */
    void end() {
        if (at < bytes.length) {
            throw new IllegalArgumentException("a partial aggregate is too long");
        }
    }

    private int next() {
        if (at == bytes.length) {
            throw new IllegalArgumentException("a partial aggregate is too short");
        }
        return bytes[at++] & 0xff;
    }
}
