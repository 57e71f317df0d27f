package stepwell.example;

import java.io.IOException;
import java.net.URLEncoder;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.time.temporal.ChronoUnit;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.generic.GenericRecordBuilder;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Writes {@code retrain::answered} to the topic of results. */
final class Answers implements AutoCloseable {

  private static final String TOPIC = "stepwell.retrain-results";
  private static final String TYPE = "retrain::answered";
  private static final DateTimeFormatter TIME =
      DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSSSSS'Z'").withZone(ZoneOffset.UTC);

  private final Schemas schemas;
  private final Frame frame;
  private final String trainer;
  private final KafkaProducer<byte[], byte[]> producer;
  private final SecureRandom random = new SecureRandom();

  Answers(String bootstrap, Schemas schemas, String trainer) {
    this.schemas = schemas;
    this.frame = new Frame(schemas);
    this.trainer = trainer;
    // The client's defaults are safe: all replicas acknowledge, retries never double, keys are spread by murmur2.
    this.producer =
        new KafkaProducer<>(
            Map.of(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap),
            new ByteArraySerializer(),
            new ByteArraySerializer());
  }

  /** Answers a request; returns once every replica has the answer. */
  void write(GenericRecord request, String status, String newCheckpoint, String detail)
      throws IOException, InterruptedException, ExecutionException {
    UUID id = newId();
    Instant now = Instant.now().truncatedTo(ChronoUnit.MICROS);
    Schema schema = schemas.latest(TYPE).schema();
    GenericRecord answer =
        new GenericRecordBuilder(schema)
            .set("event_id", new GenericData.Fixed(schema.getField("event_id").schema(), bytesOf(id)))
            .set("run_id", request.get("run_id"))
            .set("episode_id", request.get("episode_id"))
            .set("attempt", request.get("attempt"))
            .set("producer", new GenericData.EnumSymbol(schema.getField("producer").schema(), "trainer"))
            .set("producer_id", trainer)
            .set("producer_seq", 0L)
            .set("occurred_at", ChronoUnit.MICROS.between(Instant.EPOCH, now))
            .set("trace_id", request.get("trace_id"))
            .set("trigger_id", request.get("trigger_id"))
            .set("policy", request.get("policy"))
            .set("status", status)
            .set("new_checkpoint", newCheckpoint)
            .set("detail", detail)
            .build();
    byte[] key = request.get("policy").toString().getBytes(StandardCharsets.UTF_8);
    ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(TOPIC, key, frame.encode(TYPE, answer));
    String span = String.format("%016x", id.getLeastSignificantBits());
    Map<String, String> headers =
        Map.of(
            "stepwell-schema", schemas.latest(TYPE).fingerprint(),
            "ce_specversion", "1.0",
            "ce_type", TYPE,
            "ce_id", id.toString(),
            "ce_source", "/stepwell/trainer/" + URLEncoder.encode(trainer, StandardCharsets.UTF_8).replace("+", "%20"),
            "ce_time", TIME.format(now),
            "content-type", "application/avro",
            "traceparent", "00-" + request.get("trace_id") + "-" + span + "-01");
    headers.forEach((name, value) -> record.headers().add(name, value.getBytes(StandardCharsets.UTF_8)));
    producer.send(record).get();
  }

  @Override
  public void close() {
    producer.close();
  }

  /** A UUID of version 7 (RFC 9562): 48 bits of milliseconds, then random bits. */
  private UUID newId() {
    long high = System.currentTimeMillis() << 16 | 0x7000L | random.nextLong() & 0x0fffL;
    long low = 0x8000000000000000L | random.nextLong() >>> 2;
    return new UUID(high, low);
  }

  private static byte[] bytesOf(UUID id) {
    return ByteBuffer.allocate(16).putLong(id.getMostSignificantBits()).putLong(id.getLeastSignificantBits()).array();
  }
}
