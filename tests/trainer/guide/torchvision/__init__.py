"""Stand-in for the parts of torchvision that the guide uses. Images are generated, not downloaded."""
