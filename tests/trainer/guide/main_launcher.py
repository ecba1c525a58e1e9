# main_launcher.py

from windlass.trainer import TrainerClient
from train_function import train_fashion_mnist # Import the function

# 1. Initialize the TrainerClient
# This client connects to your currently configured Kubernetes cluster (from kubectl).
client = TrainerClient()

# 2. Define the TrainJob
# This specifies what to run and how to run it.
job_name = "pytorch-fashion-mnist-example"

# We use a public container image that has PyTorch and other common libraries.
# For your own projects, you would build and push your own image.
image = "docker.io/kubeflow/pytorch-dist-example:latest"

# Define the job
job = client.create_job(
    name=job_name,
    train_func=train_fashion_mnist,
    base_image=image,
    num_workers=2,  # We'll run the training across 2 pods (workers)
    resources_per_worker={
        "cpu": "1",         # Request 1 CPU core per worker
        "memory": "2Gi"     # Request 2Gi of memory per worker
        # For GPUs, you would add: "gpu": "1"
    }
)

print(f"TrainJob '{job.name}' created. Status: {job.status}")

# 3. Monitor the Job
print("\nStreaming logs:")
client.stream_logs(job_name)

# 4. Check the Final Status and Clean Up
job_status = client.get_job_status(job_name)
print(f"\nFinal job status: {job_status}")

if job_status == "Succeeded":
    print("Job completed successfully!")
else:
    print("Job failed or is in an unknown state.")

# 5. (Optional) Delete the job
# client.delete_job(job_name)
# print(f"Job '{job_name}' deleted.")
