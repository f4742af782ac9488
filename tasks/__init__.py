"""What is learned: data sets, how they are split over clients, and models.

Importing `tasks.data`, `tasks.partition` or `tasks.client_data` loads NumPy alone: Flower starts a
Python process per message in a deployment, so heavy libraries are imported where they are used.
"""
