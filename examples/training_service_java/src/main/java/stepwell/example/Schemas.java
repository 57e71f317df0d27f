package stepwell.example;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.SchemaNormalization;

/** The schemas that Stepwell publishes: every version of every type, by its fingerprint. */
final class Schemas {

  /** One version of one type. The fingerprint is CRC-64-AVRO, little-endian, in hexadecimal. */
  record Version(int id, String type, int version, String fingerprint, Schema schema) {}

  private final Map<String, Version> byFingerprint = new HashMap<>();
  private final Map<String, Version> latest = new HashMap<>();

  /** Reads {@code ids.json} and the schemas that it names; refuses a schema whose fingerprint is another. */
  Schemas(Path directory) throws IOException {
    JsonNode ids = new ObjectMapper().readTree(Files.readString(directory.resolve("ids.json")));
    for (JsonNode entry : ids.get("schemas")) {
      Path file = directory.resolve(entry.get("file").asText());
      // A parser each: versions of one type have the same names.
      Schema schema = new Schema.Parser().parse(Files.readString(file));
      String fingerprint = fingerprintOf(schema);
      if (!fingerprint.equals(entry.get("fingerprint").asText())) {
        throw new IOException(file + " has the fingerprint " + fingerprint + ", ids.json says " + entry);
      }
      Version version =
          new Version(
              entry.get("id").asInt(),
              entry.get("type").asText(),
              entry.get("version").asInt(),
              fingerprint,
              schema);
      byFingerprint.put(fingerprint, version);
      latest.merge(version.type(), version, (a, b) -> a.version() > b.version() ? a : b);
    }
  }

  /** The version with this fingerprint, or null. */
  Version byFingerprint(String fingerprint) {
    return byFingerprint.get(fingerprint);
  }

  /** The newest version of a type: what we write, and what older ones are read as. */
  Version latest(String type) {
    Version version = latest.get(type);
    if (version == null) {
      throw new IllegalArgumentException("ids.json has no type " + type);
    }
    return version;
  }

  private static String fingerprintOf(Schema schema) {
    long crc = SchemaNormalization.parsingFingerprint64(schema);
    byte[] bytes = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(crc).array();
    return HexFormat.of().formatHex(bytes);
  }
}
