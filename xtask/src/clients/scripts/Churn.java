// Objects in the machine's own heap, which takes memory from the system by itself, and buffers outside it, which come from malloc.
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.zip.CRC32;

public class Churn {
    public static void main(String[] args) {
        CRC32 crc = new CRC32();
        for (int step = 0; step < 700; step++) {
            HashMap<Integer, String> map = new HashMap<>();
            for (int i = 0; i < 30000; i++) map.put(i * 31 + step, "value " + i);
            crc.update(map.get(31 + step).getBytes());
            ByteBuffer buffer = ByteBuffer.allocateDirect(4 << 20);
            for (int i = 0; i + 8 <= buffer.capacity(); i += 64) buffer.putLong(i, (long) i * step);
            crc.update(buffer);
        }
        System.out.println(Long.toHexString(crc.getValue()));
    }
}
