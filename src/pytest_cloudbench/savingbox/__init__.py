"""The batching folder (UDS, Middleware 2013): a folder in front of a sync client's, with pushes in batches.

``batching`` decides when to push. All else is here: reading and changing the two folders, what was agreed between them,
and the loop that does it. The **box** is the user's folder (the paper's SavingBox), and the **sync folder** is what a
client watches. A **push** goes to the sync folder, a **pull** comes from it.
"""
