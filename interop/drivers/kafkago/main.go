// Driver of kafka-go (segmentio). Its consumer group is in member.go, its login in secured.go.

package main

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

var codecs = map[string]kafka.Compression{
	"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
}

const callTimeout = 30 * time.Second

type driver struct {
	brokers   []string
	addr      net.Addr
	client    *kafka.Client
	transport *kafka.Transport
	dialer    *kafka.Dialer
	kept      *writer
	member    *member
}

func main() {
	d := &driver{brokers: strings.Split(os.Args[1], ",")}
	d.addr = kafka.TCP(d.brokers...)
	d.transport, d.dialer = comeIn()
	d.client = &kafka.Client{Addr: d.addr, Timeout: callTimeout, Transport: d.transport}
	serve(d.run, codeOf)
}

func codeOf(err error) int {
	var known kafka.Error
	var written kafka.WriteErrors
	var tooLarge kafka.MessageTooLargeError
	switch {
	case errors.As(err, &written):
		for _, each := range written {
			if each != nil {
				return codeOf(each)
			}
		}
	case errors.As(err, &tooLarge):
		return int(kafka.MessageSizeTooLarge)
	case errors.As(err, &known):
		return int(known)
	}
	return -1
}

func within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), callTimeout)
}

// Asks again for a while where a broker does not know a new topic yet, as kafka-go's own examples do.
func patiently(ask func() error) error {
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		err := ask()
		unknown := errors.Is(err, kafka.UnknownTopicOrPartition) || codeOf(err) == int(kafka.UnknownTopicOrPartition)
		if !unknown || time.Now().After(deadline) {
			return err
		}
	}
}

func (d *driver) run(c *command) (answer, error) {
	switch c.Op {
	case "hello":
		return answer{"version": "kafka-go"}, nil
	case "produce":
		return d.produce(c)
	case "fetch":
		return d.fetch(c)
	case "join":
		return nil, d.join(c)
	case "poll":
		return d.member.poll(c)
	case "commit":
		return nil, d.member.commit()
	case "close":
		if d.member == nil {
			return nil, nil
		}
		err := d.member.close()
		d.member = nil
		return nil, err
	}
	if told, err, known := d.topics(c); known {
		return told, err
	}
	return d.groups(c)
}

func (d *driver) topics(c *command) (answer, error, bool) {
	ctx, cancel := within()
	defer cancel()
	switch c.Op {
	case "create_topic":
		made := kafka.TopicConfig{
			Topic: c.Topic, NumPartitions: int(c.partitionCount()), ReplicationFactor: int(c.Replication),
		}
		for name, value := range c.Configs {
			made.ConfigEntries = append(made.ConfigEntries, kafka.ConfigEntry{ConfigName: name, ConfigValue: value})
		}
		told, err := d.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{made}})
		if err == nil {
			err = told.Errors[c.Topic]
		}
		return nil, err, true
	case "delete_topic":
		told, err := d.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{c.Topic}})
		if err == nil {
			err = told.Errors[c.Topic]
		}
		return nil, err, true
	case "describe_topic":
		told, err := d.described(ctx, c.Topic)
		return told, err, true
	case "alter_config":
		changed := kafka.IncrementalAlterConfigsRequestResource{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: c.Topic,
		}
		for name, value := range c.Configs {
			changed.Configs = append(changed.Configs, kafka.IncrementalAlterConfigsRequestConfig{
				Name: name, Value: value, ConfigOperation: kafka.ConfigOperationSet,
			})
		}
		told, err := d.client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
			Resources: []kafka.IncrementalAlterConfigsRequestResource{changed},
		})
		if err == nil {
			err = told.Resources[0].Error
		}
		return nil, err, true
	case "describe_config":
		told, err := d.client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
			Resources: []kafka.DescribeConfigRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: c.Topic}},
		})
		configs := map[string]string{}
		if err == nil {
			err = told.Resources[0].Error
			for _, each := range told.Resources[0].ConfigEntries {
				configs[each.ConfigName] = each.ConfigValue
			}
		}
		return answer{"configs": configs}, err, true
	case "create_partitions":
		wanted := kafka.TopicPartitionsConfig{Name: c.Topic, Count: c.Total}
		told, err := d.client.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
			Topics: []kafka.TopicPartitionsConfig{wanted},
		})
		if err == nil {
			err = told.Errors[c.Topic]
		}
		return nil, err, true
	case "offset_at":
		var told answer
		err := patiently(func() (err error) { told, err = d.offsetAt(ctx, c); return })
		return told, err, true
	}
	return nil, nil, false
}

func (d *driver) described(ctx context.Context, topic string) (answer, error) {
	told, err := d.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, err
	}
	if err = told.Topics[0].Error; err != nil {
		return nil, err
	}
	partitions := []answer{}
	for _, each := range told.Topics[0].Partitions {
		replicas := []int{}
		for _, one := range each.Replicas {
			replicas = append(replicas, one.ID)
		}
		partitions = append(partitions, answer{"leader": each.Leader.ID, "replicas": replicas})
	}
	return answer{"partitions": partitions}, nil
}

func (d *driver) offsetAt(ctx context.Context, c *command) (answer, error) {
	when := kafka.LastOffset
	if at, ok := c.At.(float64); ok {
		when = int64(at)
	} else if c.At == "earliest" {
		when = kafka.FirstOffset
	}
	told, err := d.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{c.Topic: {{Partition: int(c.Partition), Timestamp: when}}},
	})
	if err != nil {
		return nil, err
	}
	found := told.Topics[c.Topic][0]
	if found.Error != nil {
		return nil, found.Error
	}
	switch when {
	case kafka.LastOffset:
		return answer{"offset": found.LastOffset}, nil
	case kafka.FirstOffset:
		return answer{"offset": found.FirstOffset}, nil
	}
	for offset := range found.Offsets {
		return answer{"offset": offset}, nil
	}
	return answer{"offset": -1}, nil
}

func (d *driver) groups(c *command) (answer, error) {
	ctx, cancel := within()
	defer cancel()
	switch c.Op {
	case "list_groups":
		told, err := d.client.ListGroups(ctx, &kafka.ListGroupsRequest{})
		if err == nil {
			err = told.Error
		}
		names := []string{}
		if err == nil {
			for _, each := range told.Groups {
				names = append(names, each.GroupID)
			}
		}
		return answer{"groups": names}, err
	case "describe_group":
		told, err := d.client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{c.Group}})
		if err == nil {
			err = told.Groups[0].Error
		}
		if err != nil {
			return nil, err
		}
		return answer{"state": told.Groups[0].GroupState, "members": len(told.Groups[0].Members)}, nil
	case "delete_group":
		told, err := d.client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{c.Group}})
		if err == nil {
			err = told.Errors[c.Group]
		}
		return nil, err
	case "committed":
		wanted := []int{}
		for _, each := range c.partitionList() {
			wanted = append(wanted, int(each))
		}
		told, err := d.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
			GroupID: c.Group, Topics: map[string][]int{c.Topic: wanted},
		})
		if err == nil {
			err = told.Error
		}
		offsets := map[int]int64{}
		if err == nil {
			for _, each := range told.Topics[c.Topic] {
				offsets[each.Partition] = each.CommittedOffset
			}
		}
		return answer{"offsets": offsets}, err
	case "reset_group":
		wanted := []kafka.OffsetCommit{}
		for partition, offset := range c.Offsets {
			wanted = append(wanted, kafka.OffsetCommit{Partition: int(partition), Offset: offset})
		}
		told, err := d.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{
			GroupID: c.Group, GenerationID: -1, Topics: map[string][]kafka.OffsetCommit{c.Topic: wanted},
		})
		if err == nil {
			for _, each := range told.Topics[c.Topic] {
				if each.Error != nil {
					err = each.Error
				}
			}
		}
		return nil, err
	}
	return nil, unsupported("no such call in this client")
}

// A Writer, and what it has told of the messages of one call.
type writer struct {
	*kafka.Writer
	lock   sync.Mutex // partitions are written side by side
	placed map[int][2]int64
}

func (d *driver) writer(c *command) *writer {
	if c.Kept && d.kept != nil {
		return d.kept
	}
	made := &writer{placed: map[int][2]int64{}}
	made.Writer = &kafka.Writer{
		Addr: d.addr, Transport: d.transport, Compression: codecs[c.Codec],
		RequiredAcks: map[string]kafka.RequiredAcks{
			"0": kafka.RequireNone, "1": kafka.RequireOne, "all": kafka.RequireAll,
		}[c.Acks],
		Balancer:  chosen{},
		BatchSize: 1000, BatchBytes: 8_000_000, BatchTimeout: 20 * time.Millisecond, MaxAttempts: 3,
	}
	made.Completion = func(messages []kafka.Message, err error) {
		made.lock.Lock()
		defer made.lock.Unlock()
		for _, each := range messages {
			made.placed[each.WriterData.(note).number] = [2]int64{int64(each.Partition), each.Offset}
		}
	}
	if c.Kept {
		d.kept = made
	}
	return made
}

// What the driver wants to know of a message again: its place in the call, and the partition that was asked for.
type note struct {
	number    int
	partition *int32
}

// Puts a message where it is to go, or where Kafka's hash of its key puts it.
type chosen struct{}

func (chosen) Balance(message kafka.Message, partitions ...int) int {
	if wanted := message.WriterData.(note).partition; wanted != nil {
		return int(*wanted)
	}
	return kafka.Murmur2Balancer{}.Balance(message, partitions...)
}

func (d *driver) produce(c *command) (answer, error) {
	if c.Idempotent {
		return nil, unsupported("has no idempotent producer")
	}
	w := d.writer(c)
	if !c.Kept {
		defer w.Close()
	}
	messages := []kafka.Message{}
	for number, each := range c.Records {
		made := kafka.Message{Topic: c.Topic, Key: plain(each.Key), Value: plain(each.Value)}
		if made.Value != nil && len(made.Value) == 0 {
			return nil, unsupported("its Reader takes an empty value for none")
		}
		made.WriterData = note{number, each.Partition}
		if each.Timestamp != nil {
			made.Time = time.UnixMilli(*each.Timestamp)
		}
		pairs := each.headerPairs()
		for place := range each.Headers {
			made.Headers = append(made.Headers, kafka.Header{Key: string(pairs[place][0]), Value: pairs[place][1]})
		}
		messages = append(messages, made)
	}
	ctx, cancel := within()
	defer cancel()
	if err := patiently(func() error { return w.WriteMessages(ctx, messages...) }); err != nil {
		return nil, err
	}
	sent := []answer{}
	for number := range messages {
		sent = append(sent, answer{"partition": w.placed[number][0], "offset": w.placed[number][1]})
	}
	return answer{"sent": sent}, nil
}

func told(each kafka.Message) record {
	timestamp, partition := each.Time.UnixMilli(), int32(each.Partition)
	found := record{Partition: &partition, Offset: each.Offset, Timestamp: &timestamp, Headers: [][2]any{}}
	found.Key, found.Value = packed(each.Key), packed(each.Value)
	for _, header := range each.Headers {
		found.Headers = append(found.Headers, [2]any{header.Key, packed(header.Value)})
	}
	return found
}

func (d *driver) reader(topic string, partition int) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: d.brokers, Dialer: d.dialer, Topic: topic, Partition: partition,
		MinBytes: 1, MaxBytes: 10 << 20, MaxWait: 200 * time.Millisecond, OffsetOutOfRangeError: true,
	})
}

func (d *driver) fetch(c *command) (answer, error) {
	reading := d.reader(c.Topic, int(c.Partition))
	defer reading.Close()
	if err := reading.SetOffset(c.Offset); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.TimeoutMs)*time.Millisecond)
	defer cancel()
	records := []record{}
	for len(records) < c.Count {
		each, err := reading.ReadMessage(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		} else if err != nil {
			return nil, err
		}
		records = append(records, told(each))
	}
	return answer{"records": records}, nil
}
