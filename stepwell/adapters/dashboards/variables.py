"""What readers can choose on the dashboards. The SQL sees ``'*'`` where nothing is chosen."""

from stepwell.adapters.dashboards.model import Variable

POLICY = Variable(name="policy", label="Policy", query="policies")
TASK = Variable(name="task", label="Task", query="tasks")
RUN = Variable(name="run", label="Run", query="runs")
HOST = Variable(name="host", label="Host", query="hosts")
EPISODE = Variable(name="episode", label="Episode", query="episodes", several=False)
