// One task: all its parties on one time axis.
import { useJobView } from "../jobview";
import { coterie } from "../commands";
import { Empty, Phase, Progress, Screen, useRows } from "../parts";
import { word } from "../router";
import { t } from "../text";
import { TimelineChart } from "../timeline";
import { JOBS, type JobRow } from "./jobs";

export function TaskScreen() {
  const [name, alias] = [word(2), word(4)];
  const row = useRows<JobRow>({ ...JOBS, fields: `metadata.name=${name}` });
  const job = row.list.value[0];
  const { view, problem } = useJobView(name, JSON.stringify(job ?? null), job !== undefined && !job.ended);
  const task = view?.state.tasks.find((each) => each.alias === alias);
  return (
    <Screen
      title={<span class="mono">{alias}</span>}
      parent={{ href: `/jobs/${encodeURIComponent(name)}`, label: name }}
      tools={
        <>
          {task ? <Phase phase={task.phase} /> : null}
          {task && ["Running", "Succeeded"].includes(task.phase) ? <Progress share={task.progress} text={task.progressText} label={alias} /> : null}
        </>
      }
      command={coterie(["job", "show", name, "--timeline", "--task", alias])}
    >
      {problem ? <div class="banner">{problem}</div> : null}
      <div class="body">{view === null ? <p class="dim">{problem ? "" : t("loading")}</p> : task === undefined ? <Empty text={t("noTask", { task: alias, job: name })} /> : <TimelineChart view={view} task={alias} />}</div>
    </Screen>
  );
}
