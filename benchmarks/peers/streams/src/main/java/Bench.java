import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams with RocksDB, exactly once, over the same events: counts each producer's sequence, follows the state by
 * a table, adds up steps and rewards, and gives one outcome per episode. No guards, no verdict, no dead letters.
 *
 * <p>Bench BOOTSTRAP SCHEMAS_JSON STATE_DIRECTORY THREADS EVENTS cache|nocache
 */
public class Bench {
  static final AtomicLong COUNT = new AtomicLong();
  static final Map<Integer, String> TYPES = new HashMap<>();
  static final Map<Integer, Schema> SCHEMAS = new HashMap<>();
  static long half;

  /** What is kept of an episode. */
  static final class Episode {
    int state;
    int steps;
    int repeats;
    int gaps;
    double reward;
    long sim;
    long agent;
    long host;
  }

  static final class EpisodeSerde implements Serde<Episode>, Serializer<Episode>, Deserializer<Episode> {
    public Serializer<Episode> serializer() {
      return this;
    }

    public Deserializer<Episode> deserializer() {
      return this;
    }

    public void configure(Map<String, ?> options, boolean isKey) {}

    public void close() {}

    public byte[] serialize(String topic, Episode e) {
      if (e == null) return null;
      ByteBuffer out = ByteBuffer.allocate(48);
      out.putInt(e.state).putInt(e.steps).putInt(e.repeats).putInt(e.gaps).putDouble(e.reward);
      return out.putLong(e.sim).putLong(e.agent).putLong(e.host).array();
    }

    public Episode deserialize(String topic, byte[] value) {
      if (value == null) return null;
      ByteBuffer in = ByteBuffer.wrap(value);
      Episode e = new Episode();
      e.state = in.getInt();
      e.steps = in.getInt();
      e.repeats = in.getInt();
      e.gaps = in.getInt();
      e.reward = in.getDouble();
      e.sim = in.getLong();
      e.agent = in.getLong();
      e.host = in.getLong();
      return e;
    }
  }

  // 0 new, 1 ready, 2 acting, 3 stepped, 4 done, 9 wrong
  static int next(int state, String type) {
    return switch (type) {
      case "sim::ready" -> state == 0 ? 1 : 9;
      case "agent::action_sent" -> state >= 1 && state <= 3 ? 2 : 9;
      case "sim::step_done" -> state == 2 ? 3 : 9;
      case "episode::ended" -> state <= 3 ? 4 : 9;
      default -> state;
    };
  }

  static final class Fold implements Processor<byte[], byte[], String, String> {
    final Map<Integer, GenericDatumReader<GenericRecord>> readers = new HashMap<>();
    final Map<Integer, GenericRecord> reused = new HashMap<>();
    ProcessorContext<String, String> context;
    KeyValueStore<String, Episode> store;
    BinaryDecoder decoder;

    public void init(ProcessorContext<String, String> given) {
      context = given;
      store = given.getStateStore("episodes");
    }

    public void process(Record<byte[], byte[]> record) {
      long count = COUNT.incrementAndGet();
      if (count == 1) say("first");
      if (count == half) say("half");
      byte[] value = record.value();
      int id = ByteBuffer.wrap(value).getInt(1);
      String type = TYPES.get(id);
      GenericRecord event;
      try {
        decoder = DecoderFactory.get().binaryDecoder(value, 5, value.length - 5, decoder);
        event = readers.computeIfAbsent(id, n -> new GenericDatumReader<>(SCHEMAS.get(n))).read(reused.get(id), decoder);
      } catch (IOException error) {
        throw new RuntimeException(error);
      }
      reused.put(id, event);
      String episodeId = event.get("episode_id").toString();
      Episode e = store.get(episodeId);
      if (e == null) e = new Episode();
      if (inTurn(e, event.get("producer").toString(), (Long) event.get("producer_seq"))) {
        e.state = next(e.state, type);
        if (type.equals("sim::step_done")) {
          e.steps++;
          if (event.get("reward") != null) e.reward += (Double) event.get("reward");
        }
      }
      store.put(episodeId, e);
      if (type.equals("episode::ended")) {
        String outcome = e.state == 4 && Boolean.TRUE.equals(event.get("success")) ? "success" : "failure";
        context.forward(
            new Record<>(
                episodeId,
                String.format(
                    Locale.ROOT,
                    "{\"episode_id\":\"%s\",\"outcome\":\"%s\",\"steps\":%d,\"reward\":%s,\"state\":%d,\"gaps\":%d}",
                    episodeId, outcome, e.steps, e.reward, e.state, e.gaps),
                record.timestamp()));
      }
    }

    /** Whether the sequence is new; what it skips is counted. */
    static boolean inTurn(Episode e, String producer, long seq) {
      long expected = producer.equals("sim") ? e.sim : producer.equals("agent") ? e.agent : e.host;
      if (seq < expected) {
        e.repeats++;
        return false;
      }
      e.gaps += (int) (seq - expected);
      switch (producer) {
        case "sim" -> e.sim = seq + 1;
        case "agent" -> e.agent = seq + 1;
        default -> e.host = seq + 1;
      }
      return true;
    }
  }

  static void say(String what) {
    System.out.printf(Locale.ROOT, "{\"%s\": %.3f}%n", what, System.currentTimeMillis() / 1000.0);
    System.out.flush();
  }

  public static void main(String[] arguments) throws Exception {
    JsonNode all = new ObjectMapper().readTree(new File(arguments[1]));
    all.fields()
        .forEachRemaining(
            entry -> {
              int id = Integer.parseInt(entry.getKey());
              TYPES.put(id, entry.getValue().get("type").asText());
              SCHEMAS.put(id, new Schema.Parser().parse(entry.getValue().get("schema").toString()));
            });
    half = Long.parseLong(arguments[4]) / 2;
    Properties options = new Properties();
    options.put("application.id", "bench-streams");
    options.put("bootstrap.servers", arguments[0]);
    options.put("state.dir", arguments[2]);
    options.put("processing.guarantee", "exactly_once_v2");
    options.put("num.stream.threads", arguments[3]);
    options.put("commit.interval.ms", "100");
    options.put("auto.offset.reset", "earliest");
    options.put("replication.factor", "1");
    var supplier = Stores.persistentKeyValueStore("episodes");
    var builder = Stores.keyValueStoreBuilder(supplier, Serdes.String(), new EpisodeSerde());
    Topology topology = new Topology();
    topology.addSource("in", new ByteArrayDeserializer(), new ByteArrayDeserializer(), "stepwell.episode-events");
    topology.addProcessor("fold", Fold::new, "in");
    topology.addStateStore(arguments[5].equals("cache") ? builder.withCachingEnabled() : builder, "fold");
    topology.addSink("out", "bench.outcomes", new StringSerializer(), new StringSerializer(), "fold");
    KafkaStreams streams = new KafkaStreams(topology, options);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
    streams.start();
    Thread.currentThread().join();
  }
}
