# The rpms that were built from source install without debug information, find their providers, and two processes move a file.
rpms_work /scratch/rpms/*.rpm
