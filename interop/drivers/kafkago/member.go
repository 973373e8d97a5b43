// A member of a group: kafka-go hands out generations, and the driver reads the partitions of each until it ends.

package main

import (
	"context"
	"errors"
	"time"

	"github.com/segmentio/kafka-go"
)

type handed struct {
	message    kafka.Message
	generation *kafka.Generation
}

// A member of a group.
type member struct {
	group       *kafka.ConsumerGroup
	stop        context.CancelFunc
	done        chan struct{}
	messages    chan handed
	generations chan *kafka.Generation
	ended       chan *kafka.Generation
	refusals    chan error
	generation  *kafka.Generation
	offsets     map[string]map[int]int64
}

func (d *driver) join(c *command) error {
	if c.Protocol != "classic" {
		return unsupported("has no KIP-848 protocol")
	}
	if c.Assignor != "range" {
		return unsupported("has eager assignors alone")
	}
	if c.Instance != nil {
		return unsupported("has no static members")
	}
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: c.Group, Brokers: d.brokers, Dialer: d.dialer, Topics: c.Topics,
		GroupBalancers:    []kafka.GroupBalancer{kafka.RangeGroupBalancer{}},
		HeartbeatInterval: 500 * time.Millisecond, SessionTimeout: 30 * time.Second,
		JoinGroupBackoff: 500 * time.Millisecond, StartOffset: kafka.FirstOffset,
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	d.member = &member{
		group: group, stop: stop, done: make(chan struct{}), messages: make(chan handed),
		generations: make(chan *kafka.Generation, 100), ended: make(chan *kafka.Generation, 100),
		refusals: make(chan error, 1), offsets: map[string]map[int]int64{},
	}
	go d.member.take(ctx, d)
	return nil
}

func (m *member) take(ctx context.Context, d *driver) {
	defer close(m.done)
	for ctx.Err() == nil {
		generation, err := m.group.Next(ctx)
		if err != nil {
			m.note(err)
			continue
		}
		m.generations <- generation
		for topic, partitions := range generation.Assignments {
			for _, each := range partitions {
				generation.Start(func(ctx context.Context) { m.read(ctx, d, generation, topic, each) })
			}
		}
		generation.Start(func(ctx context.Context) {
			<-ctx.Done()
			m.ended <- generation
		})
	}
}

func (m *member) read(
	ctx context.Context, d *driver, generation *kafka.Generation, topic string, each kafka.PartitionAssignment,
) {
	reading := d.reader(topic, each.ID)
	defer reading.Close()
	reading.SetOffset(each.Offset)
	for ctx.Err() == nil {
		message, err := reading.ReadMessage(ctx)
		if err != nil {
			m.note(err)
			continue
		}
		select {
		case m.messages <- handed{message, generation}:
		case <-ctx.Done():
		}
	}
}

// Keeps the first refusal for the next poll; a group gets over everything else by itself.
func (m *member) note(err error) {
	for _, refusal := range []kafka.Error{
		kafka.TopicAuthorizationFailed, kafka.GroupAuthorizationFailed, kafka.SASLAuthenticationFailed,
	} {
		if errors.Is(err, refusal) {
			select {
			case m.refusals <- err:
			default:
			}
		}
	}
}

func (m *member) poll(c *command) (answer, error) {
	records := []record{}
	timeout := time.After(time.Duration(c.TimeoutMs) * time.Millisecond)
	for open := true; open && len(records) < c.Count; {
		select {
		case each := <-m.messages:
			records = append(records, told(each.message))
			of := m.offsets[each.message.Topic]
			if of == nil {
				of = map[int]int64{}
				m.offsets[each.message.Topic] = of
			}
			of[each.message.Partition] = each.message.Offset + 1
		case generation := <-m.generations:
			m.generation, m.offsets = generation, map[string]map[int]int64{}
		case generation := <-m.ended:
			if m.generation == generation {
				m.generation = nil
			}
		case err := <-m.refusals:
			return nil, err
		case <-timeout:
			open = false
		}
	}
	share := [][2]any{}
	if m.generation != nil {
		for topic, partitions := range m.generation.Assignments {
			for _, each := range partitions {
				share = append(share, [2]any{topic, each.ID})
			}
		}
	}
	return answer{"records": records, "assigned": share}, nil
}

func (m *member) commit() error {
	if m.generation == nil {
		return kafka.RebalanceInProgress
	}
	return m.generation.CommitOffsets(m.offsets)
}

func (m *member) close() error {
	m.stop()
	err := m.group.Close()
	<-m.done
	return err
}
