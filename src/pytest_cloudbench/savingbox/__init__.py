"""The batching folder (UDS, Middleware 2013): a folder in front of a sync client's, with pushes in batches.

What may live here: reading and changing the two folders, what was agreed between them, and the loop that does it. When
to push is decided by ``batching``. The names: the **box** is the user's folder (the paper's SavingBox), the **sync
folder** is what a client watches; a **push** goes to the sync folder, a **pull** comes from it.
"""
