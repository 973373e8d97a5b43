"""The main job: a real data set through a killed leader, read back, and counted by Spark.

dataset     the 336,776 flights that left New York in 2013
load        what is sent, and when each record was acknowledged
checks      what must hold afterwards
spark_part  the same counted by Spark, and copied by a streaming query
job         the order of it all
report      the table at the end
"""
