import java.util.HashMap;
import java.util.Map;

/** A HashMap of objects: filled, asked and replaced at random, summed. */
public final class Table {
    private record Item(int id, String name, int[] data) {}

    private static final int COUNT = 700_000;

    private static Item item(int i, int version) {
        int[] data = new int[20];
        for (int k = 0; k < data.length; k++) {
            data[k] = i * k + version;
        }
        return new Item(i, "item-" + i * 7919L, data);
    }

    public static void main(String[] args) {
        Map<Integer, Item> items = new HashMap<>();
        for (int i = 0; i < COUNT; i++) {
            items.put(i, item(i, 0));
        }
        long x = 12345;
        long sum = 0;
        for (int turn = 1; turn <= 3; turn++) {
            for (int i = 0; i < COUNT / 2; i++) {
                x = (x * 6364136223846793005L + 1442695040888963407L);
                int id = (int) ((x >>> 33) % COUNT);
                Item found = items.get(id);
                sum += found.data()[turn] + found.name().length();
                if (i % 8 == 0) {
                    items.put(id, item(id, turn));
                }
            }
        }
        for (Item each : items.values()) {
            sum = sum * 31 + each.data()[1];
        }
        System.out.println(sum + " " + items.size());
    }
}
