module interop/sarama

go 1.23

require (
	github.com/IBM/sarama v1.61.1
	github.com/xdg-go/scram v1.1.2
)
