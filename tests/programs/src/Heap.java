import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32;

/** A heap of arrays, objects, strings and maps, used by several threads while garbage is collected; all checked. */
public final class Heap {
    private static final int BLOCK = 256 * 1024;

    private record Item(int id, String name, int[] data) {}

    private static byte[] block(int i, int version) {
        byte[] b = new byte[BLOCK];
        int x = i * 31 + version;
        for (int k = 0; k < BLOCK; k++) {
            // Half of the blocks compress well.
            x = x * 1103515245 + 12345;
            b[k] = i % 2 == 0 ? (byte) (x >>> 16) : (byte) (k / 64 + i + version);
        }
        return b;
    }

    private static void check(byte[] b, int i, int version) {
        byte[] want = block(i, version);
        for (int k = 0; k < BLOCK; k++) {
            if (b[k] != want[k]) {
                throw new IllegalStateException("block " + i + " byte " + k + " is " + b[k] + ", must be " + want[k]);
            }
        }
    }

    private static Item item(int i) {
        int[] data = new int[20];
        for (int k = 0; k < data.length; k++) {
            data[k] = i * k + 1;
        }
        return new Item(i, "item-" + i * 7919L, data);
    }

    public static void main(String[] args) throws InterruptedException {
        int mb = Integer.parseInt(args[0]);
        int blocks = mb * 4 * 2 / 3;
        byte[][] memory = new byte[blocks][];
        int[] version = new int[blocks];
        Map<String, Item> items = new HashMap<>();
        int count = mb * 1500;

        for (int i = 0; i < blocks; i++) {
            memory[i] = block(i, 0);
        }
        for (int i = 0; i < count; i++) {
            Item it = item(i);
            items.put(it.name(), it);
        }
        // Each thread owns every second block: checks it, replaces it or changes it in place.
        List<Thread> threads = new ArrayList<>();
        Throwable[] trouble = new Throwable[1];
        for (int t = 0; t < 2; t++) {
            int first = t;
            Thread thread = new Thread(() -> {
                for (int turn = 1; turn <= 3; turn++) {
                    for (int i = first; i < blocks; i += 2) {
                        check(memory[i], i, version[i]);
                        if ((i + turn) % 3 == 0) {
                            memory[i] = block(i, turn);
                            version[i] = turn;
                        } else if ((i + turn) % 3 == 1) {
                            System.arraycopy(block(i, turn), 0, memory[i], 0, BLOCK);
                            version[i] = turn;
                        }
                    }
                }
            });
            thread.setUncaughtExceptionHandler((th, e) -> trouble[0] = e);
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (trouble[0] != null) {
            throw new IllegalStateException(trouble[0]);
        }
        CRC32 crc = new CRC32();
        for (int i = 0; i < blocks; i++) {
            check(memory[i], i, version[i]);
            crc.update(memory[i]);
        }
        long sum = 0;
        for (int i = 0; i < count; i++) {
            Item want = item(i);
            Item it = items.get(want.name());
            for (int k = 0; k < want.data().length; k++) {
                if (it.id() != i || it.data()[k] != want.data()[k]) {
                    throw new IllegalStateException("item " + i);
                }
                sum += it.data()[k];
            }
        }
        System.out.printf("%08x %d %d%n", crc.getValue(), sum, items.size());
    }
}
