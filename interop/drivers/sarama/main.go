// Driver of sarama. Its consumer group calls back, and is in member.go.

package main

import (
	"errors"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

var codecs = map[string]sarama.CompressionCodec{
	"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
	"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
}

type driver struct {
	brokers []string
	admin   sarama.ClusterAdmin
	client  sarama.Client
	kept    sarama.SyncProducer
	ids     map[string]sarama.SyncProducer
	member  *member
}

func config() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.Metadata.Retry.Max = 2
	made.Producer.MaxMessageBytes = 8_000_000
	made.Producer.Return.Successes = true
	made.Consumer.Return.Errors = true
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	made.Consumer.Offsets.AutoCommit.Enable = false
	made.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	made.Consumer.Group.Session.Timeout = 30 * time.Second
	logIn(made)
	return made
}

func main() {
	d := &driver{brokers: strings.Split(os.Args[1], ",")}
	var err error
	if d.client, err = sarama.NewClient(d.brokers, config()); err == nil {
		d.admin, err = sarama.NewClusterAdminFromClient(d.client)
	}
	run := d.run
	if err != nil { // every call tells why it cannot come in
		run = func(*command) (answer, error) { return nil, err }
	}
	serve(run, codeOf)
}

func codeOf(err error) int {
	var known sarama.KError
	var topic *sarama.TopicError
	var partition *sarama.TopicPartitionError
	var produced sarama.ProducerErrors
	var consumed *sarama.ConsumerError
	switch {
	case errors.As(err, &topic):
		return int(topic.Err)
	case errors.As(err, &partition):
		return int(partition.Err)
	case errors.As(err, &produced):
		return codeOf(produced[0].Err)
	case errors.As(err, &consumed):
		return codeOf(consumed.Err)
	case errors.As(err, &known):
		return int(known)
	}
	return -1
}

func (d *driver) run(c *command) (answer, error) {
	switch c.Op {
	case "hello":
		return answer{"version": "sarama"}, nil
	case "produce":
		return d.produce(c)
	case "transact":
		return nil, d.transact(c)
	case "fetch":
		return d.fetch(c)
	case "join":
		return nil, d.join(c)
	case "poll":
		return d.member.poll(c)
	case "commit":
		d.member.commit()
		return nil, nil
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
	switch c.Op {
	case "create_topic":
		configs := map[string]*string{}
		for name, value := range c.Configs {
			configs[name] = &value
		}
		detail := &sarama.TopicDetail{NumPartitions: c.partitionCount(), ReplicationFactor: c.Replication, ConfigEntries: configs}
		return nil, d.admin.CreateTopic(c.Topic, detail, false), true
	case "delete_topic":
		return nil, d.admin.DeleteTopic(c.Topic), true
	case "describe_topic":
		found, err := d.admin.DescribeTopics([]string{c.Topic})
		if err == nil && found[0].Err != sarama.ErrNoError {
			err = found[0].Err
		}
		partitions := []answer{}
		if err == nil {
			for _, each := range found[0].Partitions {
				partitions = append(partitions, answer{"leader": each.Leader, "replicas": each.Replicas})
			}
		}
		return answer{"partitions": partitions}, err, true
	case "alter_config":
		changes := map[string]sarama.IncrementalAlterConfigsEntry{}
		for name, value := range c.Configs {
			changes[name] = sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}
		}
		return nil, d.admin.IncrementalAlterConfig(sarama.TopicResource, c.Topic, changes, false), true
	case "describe_config":
		found, err := d.admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: c.Topic})
		configs := map[string]string{}
		for _, each := range found {
			configs[each.Name] = each.Value
		}
		return answer{"configs": configs}, err, true
	case "create_partitions":
		return nil, d.admin.CreatePartitions(c.Topic, c.Total, nil, false), true
	case "delete_records":
		return nil, d.admin.DeleteRecords(c.Topic, map[int32]int64{c.Partition: c.Before}), true
	case "offset_at":
		when := sarama.OffsetNewest
		if at, ok := c.At.(float64); ok {
			when = int64(at)
		} else if c.At == "earliest" {
			when = sarama.OffsetOldest
		}
		if err := d.client.RefreshMetadata(c.Topic); err != nil {
			return nil, err, true
		}
		offset, err := d.client.GetOffset(c.Topic, c.Partition, when)
		return answer{"offset": offset}, err, true
	}
	return nil, nil, false
}

func (d *driver) groups(c *command) (answer, error) {
	switch c.Op {
	case "list_groups":
		found, err := d.admin.ListConsumerGroups()
		names := []string{}
		for name := range found {
			names = append(names, name)
		}
		return answer{"groups": names}, err
	case "describe_group":
		found, err := d.admin.DescribeConsumerGroups([]string{c.Group})
		if err != nil {
			return nil, err
		}
		return answer{"state": found[0].State, "members": len(found[0].Members)}, nil
	case "delete_group":
		return nil, d.admin.DeleteConsumerGroup(c.Group)
	case "committed":
		found, err := d.admin.ListConsumerGroupOffsets(c.Group, map[string][]int32{c.Topic: c.partitionList()})
		offsets := map[int32]int64{}
		if err == nil {
			for _, partition := range c.partitionList() {
				offsets[partition] = found.GetBlock(c.Topic, partition).Offset
			}
		}
		return answer{"offsets": offsets}, err
	case "reset_group":
		manager, err := sarama.NewOffsetManagerFromClient(c.Group, d.client)
		if err != nil {
			return nil, err
		}
		defer manager.Close()
		for partition, offset := range c.Offsets {
			kept, err := manager.ManagePartition(c.Topic, partition)
			if err != nil {
				return nil, err
			}
			kept.ResetOffset(offset, "")
			manager.Commit()
			kept.AsyncClose()
		}
		return nil, nil
	}
	return nil, unsupported("no such call in this client")
}

func (d *driver) producer(c *command) (sarama.SyncProducer, error) {
	if c.Kept && d.kept != nil {
		return d.kept, nil
	}
	settings := config()
	settings.Producer.RequiredAcks = map[string]sarama.RequiredAcks{
		"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll,
	}[c.Acks]
	settings.Producer.Compression = codecs[c.Codec]
	settings.Producer.Idempotent = c.Idempotent
	if c.Idempotent {
		settings.Net.MaxOpenRequests = 1
	}
	if c.Records[0].Partition != nil {
		settings.Producer.Partitioner = sarama.NewManualPartitioner
	} else if c.Records[0].Key != nil {
		return nil, unsupported("its hash of keys is FNV-1a, not Kafka's murmur2")
	}
	made, err := sarama.NewSyncProducer(d.brokers, settings)
	if c.Kept {
		d.kept = made
	}
	return made, err
}

func (d *driver) produce(c *command) (answer, error) {
	producer, err := d.producer(c)
	if err != nil {
		return nil, err
	}
	if !c.Kept {
		defer producer.Close()
	}
	messages := []*sarama.ProducerMessage{}
	for _, each := range c.Records {
		made := &sarama.ProducerMessage{Topic: c.Topic}
		if each.Partition != nil {
			made.Partition = *each.Partition
		}
		if each.Timestamp != nil {
			made.Timestamp = time.UnixMilli(*each.Timestamp)
		}
		if data := plain(each.Key); data != nil {
			made.Key = sarama.ByteEncoder(data)
		}
		if data := plain(each.Value); data != nil {
			made.Value = sarama.ByteEncoder(data)
		}
		pairs := each.headerPairs()
		for number := range each.Headers {
			made.Headers = append(made.Headers, sarama.RecordHeader{Key: pairs[number][0], Value: pairs[number][1]})
		}
		messages = append(messages, made)
	}
	if err := producer.SendMessages(messages); err != nil {
		return nil, err
	}
	sent := []answer{}
	for _, each := range messages {
		sent = append(sent, answer{"partition": each.Partition, "offset": each.Offset})
	}
	return answer{"sent": sent}, nil
}

// One transaction of the producer under this id, with the offset of a group if one is given.
func (d *driver) transact(c *command) error {
	if d.ids == nil {
		d.ids = map[string]sarama.SyncProducer{}
	}
	producer := d.ids[c.Id]
	if producer == nil {
		settings := config()
		settings.Producer.RequiredAcks = sarama.WaitForAll
		settings.Producer.Idempotent = true
		settings.Producer.Transaction.ID = c.Id
		settings.Producer.Partitioner = sarama.NewManualPartitioner
		settings.Net.MaxOpenRequests = 1
		made, err := sarama.NewSyncProducer(d.brokers, settings)
		if err != nil {
			return err
		}
		producer = made
		d.ids[c.Id] = made
	}
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	messages := []*sarama.ProducerMessage{}
	for _, each := range c.Records {
		value := sarama.ByteEncoder(plain(each.Value))
		messages = append(messages, &sarama.ProducerMessage{Topic: c.Topic, Value: value, Partition: *each.Partition})
	}
	if err := producer.SendMessages(messages); err != nil {
		return err
	}
	if c.Group != "" {
		offsets := []*sarama.PartitionOffsetMetadata{{Partition: c.Partition, Offset: c.Offset}}
		if err := producer.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{c.Source: offsets}, c.Group); err != nil {
			return err
		}
	}
	switch c.End {
	case "commit":
		return producer.CommitTxn()
	case "abort":
		return producer.AbortTxn()
	}
	return nil
}

func told(each *sarama.ConsumerMessage) record {
	timestamp := each.Timestamp.UnixMilli()
	found := record{Partition: &each.Partition, Offset: each.Offset, Timestamp: &timestamp, Headers: [][2]any{}}
	found.Key, found.Value = packed(each.Key), packed(each.Value)
	for _, header := range each.Headers {
		found.Headers = append(found.Headers, [2]any{string(header.Key), packed(header.Value)})
	}
	return found
}

func (d *driver) fetch(c *command) (answer, error) {
	settings := config()
	if c.Committed {
		settings.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	consumer, err := sarama.NewConsumer(d.brokers, settings)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	reading, err := consumer.ConsumePartition(c.Topic, c.Partition, c.Offset)
	if err != nil {
		return nil, err
	}
	defer reading.Close()
	records := []record{}
	timeout := time.After(time.Duration(c.TimeoutMs) * time.Millisecond)
	for len(records) < c.Count {
		select {
		case each := <-reading.Messages():
			records = append(records, told(each))
		case failure := <-reading.Errors():
			return nil, failure
		case <-timeout:
			return answer{"records": records}, nil
		}
	}
	return answer{"records": records}, nil
}
