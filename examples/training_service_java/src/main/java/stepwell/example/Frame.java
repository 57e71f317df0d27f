package stepwell.example;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;

/** Confluent's wire format: a zero byte, the schema's id in four bytes (big-endian), one Avro record. */
final class Frame {

  private static final int PREFIX_BYTES = 5;

  /** A record that is none of Stepwell's, or torn. */
  static final class RefusedException extends Exception {
    private static final long serialVersionUID = 1L;

    RefusedException(String message) {
      super(message);
    }
  }

  /** A decoded record and its type. */
  record Decoded(String type, GenericRecord fields) {}

  private final Schemas schemas;

  Frame(Schemas schemas) {
    this.schemas = schemas;
  }

  /**
   * Decodes a value. The fingerprint in the headers says which schema it was written with: the id may be a registry's,
   * and Avro bytes read with a wrong schema can decode to something without any error.
   */
  Decoded decode(byte[] value, Headers headers) throws RefusedException {
    if (value == null || value.length < PREFIX_BYTES || value[0] != 0) {
      throw new RefusedException("no frame: a zero byte and four bytes of schema id must come first");
    }
    String fingerprint = text(headers.lastHeader("stepwell-schema"));
    Schemas.Version writer = schemas.byFingerprint(fingerprint);
    if (writer == null) {
      throw new RefusedException(
          "the schema " + fingerprint + " is not in ids.json; are the schemas older than the record?");
    }
    GenericDatumReader<GenericRecord> reader =
        new GenericDatumReader<>(writer.schema(), schemas.latest(writer.type()).schema());
    try {
      BinaryDecoder decoder =
          DecoderFactory.get().binaryDecoder(value, PREFIX_BYTES, value.length - PREFIX_BYTES, null);
      GenericRecord fields = reader.read(null, decoder);
      if (!decoder.isEnd()) {
        throw new RefusedException("bytes are left behind the record");
      }
      return new Decoded(writer.type(), fields);
    } catch (IOException | RuntimeException error) {
      throw new RefusedException(writer.type() + " cannot be decoded: " + error);
    }
  }

  /** Encodes a record of a type, with that type's newest schema. */
  byte[] encode(String type, GenericRecord fields) throws IOException {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    out.write(ByteBuffer.allocate(PREFIX_BYTES).put((byte) 0).putInt(schemas.latest(type).id()).array());
    BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(out, null);
    new GenericDatumWriter<GenericRecord>(fields.getSchema()).write(fields, encoder);
    encoder.flush();
    return out.toByteArray();
  }

  private static String text(Header header) {
    return header == null || header.value() == null ? null : new String(header.value(), StandardCharsets.UTF_8);
  }
}
