// A member of a group: sarama calls back, and the driver keeps what it is handed until it is polled.

package main

import (
	"context"
	"time"

	"github.com/IBM/sarama"
)

type handed struct {
	message *sarama.ConsumerMessage
	session sarama.ConsumerGroupSession
}

// A member of a group.
type member struct {
	group    sarama.ConsumerGroup
	stop     context.CancelFunc
	done     chan struct{}
	messages chan handed
	sessions chan sarama.ConsumerGroupSession
	session  sarama.ConsumerGroupSession
	refusals chan error
}

func (d *driver) join(c *command) error {
	if c.Protocol != "classic" {
		return unsupported("has no KIP-848 protocol")
	}
	if c.Assignor != "range" {
		return unsupported("has eager assignors alone")
	}
	settings := config()
	settings.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	if c.Instance != nil {
		settings.Consumer.Group.InstanceId = *c.Instance
	}
	group, err := sarama.NewConsumerGroup(d.brokers, c.Group, settings)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	d.member = &member{
		group: group, stop: stop, done: make(chan struct{}),
		messages: make(chan handed), sessions: make(chan sarama.ConsumerGroupSession, 100),
		refusals: make(chan error, 1),
	}
	go func(m *member) {
		defer close(m.done)
		for ctx.Err() == nil {
			m.note(m.group.Consume(ctx, c.Topics, m))
		}
	}(d.member)
	go func(m *member) {
		for err := range group.Errors() {
			m.note(err)
		}
	}(d.member)
	return nil
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.sessions <- session
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case each, open := <-claim.Messages():
			if !open {
				return nil
			}
			select {
			case m.messages <- handed{each, session}:
			case <-session.Context().Done():
				return nil
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *member) poll(c *command) (answer, error) {
	records := []record{}
	timeout := time.After(time.Duration(c.TimeoutMs) * time.Millisecond)
	for open := true; open && len(records) < c.Count; {
		select {
		case each := <-m.messages:
			each.session.MarkMessage(each.message, "") // before a commit can follow
			records = append(records, told(each.message))
		case m.session = <-m.sessions:
		case err := <-m.refusals:
			return nil, err
		case <-timeout:
			open = false
		}
	}
	share := [][2]any{}
	if m.session != nil && m.session.Context().Err() == nil {
		for topic, numbers := range m.session.Claims() {
			for _, number := range numbers {
				share = append(share, [2]any{topic, number})
			}
		}
	}
	return answer{"records": records, "assigned": share}, nil
}

func (m *member) commit() { m.session.Commit() }

func (m *member) close() error {
	m.stop()
	<-m.done
	return m.group.Close()
}
