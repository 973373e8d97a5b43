// Reads orders as a program in another language would: JSON, Avro, and Protobuf without generated classes.
// Arguments: bootstrap, orders of each topic, order.avsc, order.proto's descriptor set.

import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
// The Protobuf runtime that Kafka's own client brings along: the usual one in another package.
import org.apache.kafka.shaded.com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import org.apache.kafka.shaded.com.google.protobuf.Descriptors.Descriptor;
import org.apache.kafka.shaded.com.google.protobuf.Descriptors.FileDescriptor;
import org.apache.kafka.shaded.com.google.protobuf.DynamicMessage;

public class ReadOrders {
    static final ObjectMapper JSON = JsonMapper.builder().enable(JsonWriteFeature.ESCAPE_NON_ASCII).build();
    static GenericDatumReader<GenericRecord> avro;
    static Descriptor protobuf;

    public static void main(String[] arguments) throws Exception {
        int wanted = Integer.parseInt(arguments[1]);
        avro = new GenericDatumReader<>(new Schema.Parser().parse(new File(arguments[2])));
        var file = FileDescriptorSet.parseFrom(Files.readAllBytes(Path.of(arguments[3]))).getFile(0);
        protobuf = FileDescriptor.buildFrom(file, new FileDescriptor[0]).findMessageTypeByName("Order");
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("auto.offset.reset", "earliest");
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            for (String topic : List.of("orders.json", "orders.avro", "orders.protobuf")) {
                consumer.assign(List.of(new TopicPartition(topic, 0)));
                for (int seen = 0; seen < wanted;) {
                    for (var record : consumer.poll(Duration.ofMillis(200))) {
                        System.out.println(topic + " " + JSON.writeValueAsString(read(topic, record.value())));
                        seen++;
                    }
                }
            }
        }
    }

    static List<Object> read(String topic, byte[] data) throws Exception {
        List<Object> order = new ArrayList<>();
        if (topic.endsWith("json")) {
            var tree = JSON.readTree(data);
            order.addAll(List.of(tree.get("table").longValue(), tree.get("dish").textValue()));
            tree.get("extras").forEach(extra -> order.add(extra.textValue()));
        } else if (topic.endsWith("avro")) {
            var record = avro.read(null, DecoderFactory.get().binaryDecoder(data, null));
            order.addAll(List.of(record.get("table"), record.get("dish").toString()));
            ((List<?>) record.get("extras")).forEach(extra -> order.add(extra.toString()));
        } else {
            var message = DynamicMessage.parseFrom(protobuf, data);
            for (String name : List.of("table", "dish")) {
                order.add(message.getField(protobuf.findFieldByName(name)));
            }
            order.addAll((List<?>) message.getField(protobuf.findFieldByName("extras")));
        }
        return order;
    }
}
