"""What every experiment shares: jobs and search, records and statistics, drawing, tables and claims.

From a job to a verdict: `command` asks an `experiment` for its jobs, `jobs` trains and measures them (`measures`, in
`processes` or by `launch`), `records` reads the result file, `statistics` compares its rows, and `claims` judges.
"""
