package stepwell.example;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads requests to retrain, prints each as a line of JSON, "trains", and answers.
 *
 * <p>A position is committed once its request has been answered, so a crash brings it again: at least once, with the
 * trigger id as the idempotency key. While a request is worked on its consumer goes on polling with all partitions
 * paused, so that long work does not cost the group membership. (Stepwell's own subscriber in Python goes further: it
 * keeps requests in an inbox on disk, so that other policies need not wait.)
 */
public final class TrainingService {

  private static final String TOPIC = "stepwell.retrain-requests";

  private final Map<String, String> options;
  private final Frame frame;
  private final Answers answers;
  private final Set<String> worked = new HashSet<>();
  private int left;
  private boolean busy;

  private TrainingService(Map<String, String> options, Schemas schemas, Answers answers) {
    this.options = options;
    this.frame = new Frame(schemas);
    this.answers = answers;
    this.left = Integer.parseInt(options.getOrDefault("--limit", "0"));
  }

  /** Options: {@code --bootstrap HOST:PORT --schemas DIRECTORY [--group NAME] [--policy NAME] [--limit N]}. */
  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = new HashMap<>(Map.of("--group", "trainer-java"));
    if (arguments.length % 2 != 0) {
      throw new IllegalArgumentException("every option needs a value");
    }
    for (int i = 0; i < arguments.length; i += 2) {
      options.put(arguments[i], arguments[i + 1]);
    }
    for (String name : List.of("--bootstrap", "--schemas")) {
      if (!options.containsKey(name)) {
        throw new IllegalArgumentException(name + " is needed");
      }
    }
    Schemas schemas = new Schemas(Path.of(options.get("--schemas")));
    try (Answers answers = new Answers(options.get("--bootstrap"), schemas, options.get("--group"))) {
      new TrainingService(options, schemas, answers).run();
    }
  }

  private void run() throws Exception {
    Map<String, Object> settings =
        Map.of(
            ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, options.get("--bootstrap"),
            ConsumerConfig.GROUP_ID_CONFIG, options.get("--group"),
            // What a transaction has not committed is none of our business.
            ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed",
            ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
            ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false,
            ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 1);
    ExecutorService worker = Executors.newSingleThreadExecutor();
    try (KafkaConsumer<byte[], byte[]> consumer =
        new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      consumer.subscribe(List.of(TOPIC), new PausedWhileBusy(consumer));
      boolean over = false;
      while (!over) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
          Future<Boolean> work = worker.submit(() -> handle(record));
          keepMembership(consumer, work);
          over = work.get();
          commit(consumer, record);
        }
      }
    } finally {
      worker.shutdown();
    }
  }

  /** Polls with everything paused until the work is done: what is long for us must not look dead to the group. */
  private void keepMembership(KafkaConsumer<byte[], byte[]> consumer, Future<Boolean> work) {
    busy = true;
    consumer.pause(consumer.assignment());
    while (!work.isDone()) {
      consumer.poll(Duration.ofMillis(100)); // gives nothing
    }
    busy = false;
    consumer.resume(consumer.assignment());
  }

  /** Pauses partitions that a rebalance brings while we work, before anything of them is handed out. */
  private final class PausedWhileBusy implements ConsumerRebalanceListener {
    private final KafkaConsumer<byte[], byte[]> consumer;

    PausedWhileBusy(KafkaConsumer<byte[], byte[]> consumer) {
      this.consumer = consumer;
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
      if (busy) {
        consumer.pause(partitions);
      }
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}
  }

  private static void commit(KafkaConsumer<byte[], byte[]> consumer, ConsumerRecord<byte[], byte[]> record) {
    TopicPartition partition = new TopicPartition(record.topic(), record.partition());
    if (consumer.assignment().contains(partition)) { // else its new owner gets the request again
      consumer.commitSync(Map.of(partition, new OffsetAndMetadata(record.offset() + 1)));
    }
  }

  /** Works on one record; whether the limit is reached. */
  private boolean handle(ConsumerRecord<byte[], byte[]> record) throws Exception {
    Frame.Decoded decoded;
    try {
      decoded = frame.decode(record.value(), record.headers());
    } catch (Frame.RefusedException error) {
      System.err.printf("%s/%d@%d: passed over: %s%n", TOPIC, record.partition(), record.offset(), error.getMessage());
      return false;
    }
    GenericRecord request = decoded.fields();
    String wanted = options.get("--policy");
    if (!decoded.type().equals("retrain::requested")
        || wanted != null && !wanted.equals(request.get("policy").toString())) {
      return false; // a withdrawal, an expiry, or a request for others
    }
    String trigger = request.get("trigger_id").toString();
    if (!worked.add(trigger)) {
      return false; // published again, or read again after a rebalance
    }
    System.out.println(Json.of(request));
    answers.write(request, "accepted", null, "");
    String checkpoint = train(request);
    answers.write(request, "done", checkpoint, "trained on " + evidenceOf(request).size() + " episodes");
    left -= 1;
    return left == 0;
  }

  /** Here your training goes; gives the name of the new checkpoint. */
  private static String train(GenericRecord request) {
    String trigger = request.get("trigger_id").toString();
    return request.get("policy") + "-" + trigger.substring(Math.max(0, trigger.length() - 4));
  }

  private static List<Object> evidenceOf(GenericRecord request) {
    List<Object> episodes = new ArrayList<>();
    ((Iterable<?>) request.get("evidence")).forEach(episodes::add);
    return episodes;
  }
}
