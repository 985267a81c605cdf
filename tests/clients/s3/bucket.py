"""Creates the bucket, once the server responds."""

import time

import boto3
from botocore.exceptions import EndpointConnectionError

client = boto3.client("s3")
for attempt in range(300):
    try:
        client.create_bucket(Bucket="sojourn")
        break
    except EndpointConnectionError:
        time.sleep(0.1)
else:
    raise SystemExit("the bucket's server does not answer")
