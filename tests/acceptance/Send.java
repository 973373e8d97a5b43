// Sends the keys key-0 ... key-999 with Apache Kafka's own client; prints "key partition" for each.

import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class Send {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < 1000; number++) {
                var record = new ProducerRecord<>(arguments[1], "key-" + number, "value");
                String key = record.key();
                producer.send(record, (told, error) -> {
                    if (error != null) {
                        throw new IllegalStateException(error);
                    }
                    System.out.println(key + " " + told.partition());
                });
            }
        }
    }
}
