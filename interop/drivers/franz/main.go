// Driver of franz-go.

package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const wait = 20 * time.Second

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

type driver struct {
	brokers  []string
	admin    *kadm.Client
	member   *kgo.Client
	kept     *kgo.Client
	ids      map[string]*kgo.Client
	lock     sync.Mutex
	assigned map[string]map[int32]bool
}

func (d *driver) client(options ...kgo.Opt) *kgo.Client {
	reached := append([]kgo.Opt{kgo.SeedBrokers(d.brokers...)}, loginOptions()...)
	client, err := kgo.NewClient(append(reached, options...)...)
	if err != nil {
		panic(err)
	}
	return client
}

func main() {
	d := &driver{brokers: strings.Split(os.Args[1], ",")}
	d.admin = kadm.NewClient(d.client(kgo.MetadataMinAge(50 * time.Millisecond)))
	serve(d.run, func(err error) int {
		var known *kerr.Error
		if errors.As(err, &known) {
			return int(known.Code)
		}
		return -1
	})
}

func (d *driver) run(c *command) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	switch c.Op {
	case "hello":
		return answer{"version": "franz-go"}, nil
	case "produce":
		return d.produce(ctx, c)
	case "transact":
		return nil, d.transact(ctx, c)
	case "fetch":
		from := map[string]map[int32]kgo.Offset{c.Topic: {c.Partition: kgo.NewOffset().At(c.Offset)}}
		level := kgo.ReadUncommitted()
		if c.Committed {
			level = kgo.ReadCommitted()
		}
		none := kgo.ConsumeResetOffset(kgo.NoResetOffset())
		client := d.client(kgo.ConsumePartitions(from), none, kgo.FetchIsolationLevel(level))
		defer client.Close()
		records, err := take(client, c)
		return answer{"records": records}, err
	case "join":
		return nil, d.join(c)
	case "poll":
		records, err := take(d.member, c)
		return answer{"records": records, "assigned": d.share()}, err
	case "commit":
		return nil, d.member.CommitUncommittedOffsets(ctx)
	case "close":
		if d.member != nil {
			d.member.Close()
			d.member = nil
		}
		return nil, nil
	}
	if told, err, known := d.topics(ctx, c); known {
		return told, err
	}
	return d.groups(ctx, c)
}

func (d *driver) topics(ctx context.Context, c *command) (answer, error, bool) {
	switch c.Op {
	case "create_topic":
		configs := map[string]*string{}
		for name, value := range c.Configs {
			configs[name] = &value
		}
		_, err := d.admin.CreateTopic(ctx, c.partitionCount(), c.Replication, configs, c.Topic)
		return nil, err, true
	case "delete_topic":
		_, err := d.admin.DeleteTopic(ctx, c.Topic)
		return nil, err, true
	case "describe_topic":
		found, err := d.admin.ListTopics(ctx, c.Topic)
		if err == nil {
			err = found[c.Topic].Err
		}
		partitions := []answer{}
		for _, each := range found[c.Topic].Partitions.Sorted() {
			partitions = append(partitions, answer{"leader": each.Leader, "replicas": each.Replicas})
		}
		return answer{"partitions": partitions}, err, true
	case "alter_config":
		changes := []kadm.AlterConfig{}
		for name, value := range c.Configs {
			changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
		}
		told, err := d.admin.AlterTopicConfigs(ctx, changes, c.Topic)
		if err == nil {
			err = told[0].Err
		}
		return nil, err, true
	case "describe_config":
		found, err := d.admin.DescribeTopicConfigs(ctx, c.Topic)
		configs := map[string]string{}
		if err == nil {
			for _, each := range found[0].Configs {
				configs[each.Key] = each.MaybeValue()
			}
		}
		return answer{"configs": configs}, err, true
	case "create_partitions":
		told, err := d.admin.UpdatePartitions(ctx, int(c.Total), c.Topic)
		if err == nil {
			err = told.Error()
		}
		return nil, err, true
	case "delete_records":
		before := kadm.Offsets{}
		before.AddOffset(c.Topic, c.Partition, c.Before, -1)
		told, err := d.admin.DeleteRecords(ctx, before)
		if err == nil {
			err = told.Error()
		}
		return nil, err, true
	case "offset_at":
		var found kadm.ListedOffsets
		var err error
		switch at := c.At.(type) {
		case float64:
			found, err = d.admin.ListOffsetsAfterMilli(ctx, int64(at), c.Topic)
		case string:
			if at == "earliest" {
				found, err = d.admin.ListStartOffsets(ctx, c.Topic)
			} else {
				found, err = d.admin.ListEndOffsets(ctx, c.Topic)
			}
		}
		told, _ := found.Lookup(c.Topic, c.Partition)
		return answer{"offset": told.Offset}, err, true
	}
	return nil, nil, false
}

func (d *driver) groups(ctx context.Context, c *command) (answer, error) {
	switch c.Op {
	case "list_groups":
		found, err := d.admin.ListGroups(ctx)
		return answer{"groups": found.Groups()}, err
	case "describe_group":
		if c.Protocol == "consumer" {
			return nil, unsupported("described as a classic group")
		}
		found, err := d.admin.DescribeGroups(ctx, c.Group)
		if err == nil {
			err = found[c.Group].Err
		}
		return answer{"state": found[c.Group].State, "members": len(found[c.Group].Members)}, err
	case "delete_group":
		told, err := d.admin.DeleteGroup(ctx, c.Group)
		if err == nil {
			err = told.Err
		}
		return nil, err
	case "committed":
		found, err := d.admin.FetchOffsets(ctx, c.Group)
		offsets := map[int32]int64{}
		for _, partition := range c.partitionList() {
			told, ok := found.Lookup(c.Topic, partition)
			offsets[partition] = -1
			if ok {
				offsets[partition] = told.At
			}
		}
		return answer{"offsets": offsets}, err
	case "reset_group":
		offsets := kadm.Offsets{}
		for partition, offset := range c.Offsets {
			offsets.AddOffset(c.Topic, partition, offset, -1)
		}
		told, err := d.admin.CommitOffsets(ctx, c.Group, offsets)
		if err == nil {
			err = told.Error()
		}
		return nil, err
	}
	return nil, unsupported("no such call in this client")
}

func (d *driver) producer(c *command) *kgo.Client {
	if c.Kept && d.kept != nil {
		return d.kept
	}
	acks := map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}[c.Acks]
	options := []kgo.Opt{
		kgo.RequiredAcks(acks), kgo.ProducerBatchCompression(codecs[c.Codec]), kgo.ProducerLinger(20 * time.Millisecond),
		kgo.ProducerBatchMaxBytes(4_000_000), kgo.UnknownTopicRetries(1),
	}
	if !c.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	if c.Records[0].Partition != nil {
		options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	made := d.client(options...)
	if c.Kept {
		d.kept = made
	}
	return made
}

func (d *driver) produce(ctx context.Context, c *command) (answer, error) {
	client := d.producer(c)
	if !c.Kept {
		defer client.Close()
	}
	records := []*kgo.Record{}
	for _, each := range c.Records {
		made := &kgo.Record{Topic: c.Topic, Key: plain(each.Key), Value: plain(each.Value)}
		if each.Partition != nil {
			made.Partition = *each.Partition
		}
		if each.Timestamp != nil {
			made.Timestamp = time.UnixMilli(*each.Timestamp)
		}
		pairs := each.headerPairs()
		for number := range each.Headers {
			pair := pairs[number]
			made.Headers = append(made.Headers, kgo.RecordHeader{Key: string(pair[0]), Value: pair[1]})
		}
		records = append(records, made)
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return nil, whyNot(client, err)
	}
	sent := []answer{}
	for _, each := range records {
		sent = append(sent, answer{"partition": each.Partition, "offset": each.Offset})
	}
	return answer{"sent": sent}, nil
}

// One transaction of the client under this id. Offsets come of franz-go's own session of a group alone.
func (d *driver) transact(ctx context.Context, c *command) error {
	if c.Group != "" {
		return unsupported("commits offsets in its own group sessions alone")
	}
	if d.ids == nil {
		d.ids = map[string]*kgo.Client{}
	}
	client := d.ids[c.Id]
	if client == nil {
		client = d.client(kgo.TransactionalID(c.Id), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		d.ids[c.Id] = client
	}
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	records := []*kgo.Record{}
	for _, each := range c.Records {
		records = append(records, &kgo.Record{Topic: c.Topic, Value: plain(each.Value), Partition: *each.Partition})
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	switch c.End {
	case "commit":
		return client.EndTransaction(ctx, kgo.TryCommit)
	case "abort":
		return client.EndTransaction(ctx, kgo.TryAbort)
	}
	return nil
}

func take(client *kgo.Client, c *command) ([]record, error) {
	records := []record{}
	deadline := time.Now().Add(time.Duration(c.TimeoutMs) * time.Millisecond)
	for len(records) < c.Count && time.Now().Before(deadline) {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		fetches := client.PollRecords(ctx, c.Count-len(records))
		cancel()
		for _, each := range fetches.Errors() {
			if !errors.Is(each.Err, context.DeadlineExceeded) {
				return nil, each.Err
			}
		}
		for _, each := range fetches.Records() {
			timestamp := each.Timestamp.UnixMilli()
			found := record{Partition: &each.Partition, Offset: each.Offset, Timestamp: &timestamp}
			found.Key, found.Value, found.Headers = packed(each.Key), packed(each.Value), [][2]any{}
			for _, header := range each.Headers {
				found.Headers = append(found.Headers, [2]any{header.Key, packed(header.Value)})
			}
			records = append(records, found)
		}
	}
	return records, nil
}

func (d *driver) join(c *command) error {
	d.assigned = map[string]map[int32]bool{}
	change := func(owned bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			d.lock.Lock()
			defer d.lock.Unlock()
			for topic, numbers := range partitions {
				if d.assigned[topic] == nil {
					d.assigned[topic] = map[int32]bool{}
				}
				for _, number := range numbers {
					d.assigned[topic][number] = owned
				}
			}
		}
	}
	balancer := kgo.RangeBalancer()
	if c.Assignor == "cooperative-sticky" {
		balancer = kgo.CooperativeStickyBalancer()
	}
	options := []kgo.Opt{
		kgo.ConsumerGroup(c.Group), kgo.ConsumeTopics(c.Topics...), kgo.DisableAutoCommit(), kgo.Balancers(balancer),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.OnPartitionsAssigned(change(true)), kgo.OnPartitionsRevoked(change(false)), kgo.OnPartitionsLost(change(false)),
	}
	if c.Protocol == "consumer" {
		next := context.WithValue(context.Background(), "opt_in_kafka_next_gen_balancer_beta", true)
		options = append(options, kgo.WithContext(next))
	}
	if c.Instance != nil {
		options = append(options, kgo.InstanceID(*c.Instance))
	}
	d.member = d.client(options...)
	return nil
}

func (d *driver) share() [][2]any {
	d.lock.Lock()
	defer d.lock.Unlock()
	share := [][2]any{}
	for topic, numbers := range d.assigned {
		for number, owned := range numbers {
			if owned {
				share = append(share, [2]any{topic, number})
			}
		}
	}
	return share
}
