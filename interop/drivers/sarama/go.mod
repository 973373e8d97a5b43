module interop/sarama

go 1.23

require github.com/IBM/sarama v1.61.1
