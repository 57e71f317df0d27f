package stepwell.example;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.util.UUID;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.GenericRecord;

/** An Avro record as plain JSON; the 16 bytes of an id as a UUID. */
final class Json {

  private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

  private Json() {}

  static JsonNode of(Object value) {
    if (value instanceof GenericRecord fields) {
      ObjectNode object = NODES.objectNode();
      for (Schema.Field field : fields.getSchema().getFields()) {
        object.set(field.name(), of(fields.get(field.pos())));
      }
      return object;
    }
    if (value instanceof Iterable<?> items) {
      ArrayNode array = NODES.arrayNode();
      items.forEach(item -> array.add(of(item)));
      return array;
    }
    if (value instanceof GenericFixed fixed) {
      return NODES.textNode(uuid(fixed).toString());
    }
    if (value instanceof Long number) {
      return NODES.numberNode(number);
    }
    if (value instanceof Double number) {
      return NODES.numberNode(number);
    }
    if (value instanceof Boolean truth) {
      return NODES.booleanNode(truth);
    }
    return value == null ? NODES.nullNode() : NODES.textNode(value.toString());
  }

  static UUID uuid(GenericFixed fixed) {
    ByteBuffer bytes = ByteBuffer.wrap(fixed.bytes());
    return new UUID(bytes.getLong(), bytes.getLong());
  }
}
