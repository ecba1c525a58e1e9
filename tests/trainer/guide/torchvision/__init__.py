"""A stand-in with as much of torchvision as the guide uses: its images are generated, nothing is fetched."""
