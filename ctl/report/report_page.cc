// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/report_page.h"

#include <algorithm>
#include <utility>

#include "common/json.h"
#include "common/text.h"
#include "ctl/number_texts.h"

namespace ddprun::report {

using ctl::bytes_text, ctl::clock_text, ctl::count_text, ctl::number_text, ctl::percent_text;
using ctl::rate_text, ctl::seconds_text, ctl::whole_text;

namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

constexpr std::size_t kMostRoundRows = 200, kMostRows = 200;

// These make pieces of HTML. Their texts are escaped, never markup.

std::string element(const std::string& tag, const std::string& text) {
  return concat('<', tag, '>', html_text(text), "</", tag, '>');
}

std::string paragraph(const std::string& style, const std::string& text) {
  return text.empty() ? "" : concat("<p class=\"", style, "\">", html_text(text), "</p>\n");
}

std::string list_of(const std::string& style, const std::vector<std::string>& texts) {
  if (texts.empty()) return "";
  std::string html = "<ul class=\"" + style + "\">";
  for (const std::string& text : texts) html += element("li", text);
  return html + "</ul>\n";
}

std::string pairs_of(const std::string& style, const Pairs& pairs) {
  std::string html = "<dl class=\"" + style + "\">";
  for (const auto& [name, text] : pairs) {
    html += "<div>" + element("dt", name) + element("dd", text) + "</div>";
  }
  return html + "</dl>\n";
}

std::string table_of(const Table& table, const std::string& caption) {
  // The element scrolls, so the keyboard must reach it.
  std::string html = concat("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"",
                            html_text(caption), "\"><table><caption>", html_text(caption),
                            "</caption><thead><tr>");
  for (const std::string& head : table.heads) {
    html += "<th scope=\"col\">" + html_text(head) + "</th>";
  }
  html += "</tr></thead><tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (std::size_t cell = 0; cell < row.size(); ++cell) {
      html += cell == 0 ? "<th scope=\"row\">" + html_text(row[cell]) + "</th>"
                        : element("td", row[cell]);
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n" + paragraph("note", table.note);
}

std::string figure_of(const Chart& chart) {
  const std::string title_id = "title-" + chart.id;
  return concat("<figure class=\"chart", chart.is_half ? " half" : "", "\" id=\"chart-", chart.id,
                "\" aria-labelledby=\"", title_id, "\">\n<figcaption><h3 id=\"", title_id, "\">",
                html_text(chart.title), "</h3>", paragraph("note", chart.summary),
                "</figcaption>\n", list_of("legend", chart.legend),
                "<div class=\"plot\"><svg aria-hidden=\"true\"></svg></div>\n"
                "<details><summary>Data: ",
                html_text(chart.title), "</summary>\n", table_of(chart.table, chart.title),
                "</details></figure>\n");
}

// Returns the charts' values by id, as a script element. No text in them can end that element.
std::string plots_of(const std::vector<Chart>& charts) {
  boost::json::object plots;
  for (const Chart& chart : charts) plots[chart.id] = chart.plot;
  std::string html = "<script type=\"application/json\" id=\"charts\">";
  for (const char letter : written_json(plots)) {
    html += letter == '<' ? "\\u003c" : std::string(1, letter);
  }
  return html + "</script>\n";
}

// Completes a sentence that begins with a number: "3 succeeded".
std::string end_text(const std::string& kind) {
  if (kind == "success") return "succeeded";
  if (kind == "error") return "failed with an exit code";
  if (kind == "signal") return "killed by a signal";
  if (kind == "out_of_memory") return "out of memory";
  if (kind == "stopped") return "told to stop";
  return state_text(kind);
}

class Page {
 public:
  Page(const Record& record, const Facts& facts, const std::vector<Chart>& charts)
      : record_(record), facts_(facts), charts_(charts) {}

  std::string html() {
    head();
    verdict();
    section("time", "Where the time went", figures(Section::kTime));
    section("rounds", "Rounds", figures(Section::kRounds) + rounds_table());
    section("training", "Loss, accuracy and throughput", training());
    section("steps", "Steps of each rank", steps());
    section("network", "Network", figures(Section::kNetwork));
    section("machines", "CPU and memory", figures(Section::kMachines));
    section("gpus", "GPUs", figures(Section::kGpus));
    section("ends", "How workers ended", ends());
    section("nodes", "Nodes", nodes());
    section("missing", "What this record lacks", list_of("plain", facts_.missing));
    section("sources", "Sources", sources());
    return concat(html_, "</main>\n", plots_of(charts_), "<script>", kReportScript,
                  "</script>\n</body>\n</html>\n");
  }

 private:
  void head() {
    const std::string job = html_text(record_.job);
    html_ = concat(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"",
        kReportPolicy,
        "\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta name=\"color-scheme\" content=\"light dark\">\n"
        "<meta name=\"generator\" content=\"ddprunctl report " DDPRUN_VERSION "\">\n<title>",
        job, " – ddprun</title>\n", kReportIcon, "<style>", kReportStyle,
        "</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">Skip to the report</a>\n"
        "<header><p class=\"brand\">ddprun</p>",
        pairs_of("facts", {{"report of a job, made by", "ddprunctl " DDPRUN_VERSION}}),
        "</header>\n<main id=\"main\" tabindex=\"-1\">\n<noscript><p class=\"note\">Charts are "
        "drawn "
        "by "
        "the page's script, which is off here; each chart's data is in its "
        "table.</p></noscript>\n");
  }

  void verdict() {
    html_ += concat("<section id=\"verdict\" aria-labelledby=\"job\"><h1 id=\"job\"><bdi>",
                    html_text(record_.job), "</bdi> ", badge(), "</h1>\n");
    if (!facts_.is_over) {
      html_ += paragraph("waits some", "Nothing here says how the job ended.");
    }
    html_ += paragraph(facts_.succeeded ? "waits" : "trouble", facts_.reason);
    if (facts_.first_failure != facts_.reason) html_ += paragraph("waits", facts_.first_failure);
    html_ += pairs_of("tiles", tiles());
    Pairs job;
    const auto add = [&](const char* name, const std::string& text) {
      if (!text.empty()) job.emplace_back(name, text);
    };
    add("program", facts_.program);
    add("began", facts_.began);
    add("ended", facts_.ended);
    if (record_.max_nodes > 0) {
      const std::string most = whole_text(record_.max_nodes);
      add("nodes wanted", record_.min_nodes == record_.max_nodes
                              ? most
                              : concat(whole_text(record_.min_nodes), " to ", most));
      add("restarts allowed", whole_text(record_.max_restarts));
    }
    add("ddprun", record_.version);
    html_ += pairs_of("facts", job) + failure();
    if (record_.end_report && !record_.end_report->excluded.empty()) {
      html_ += "<h3>Nodes that were kept out</h3>" + list_of("plain", record_.end_report->excluded);
    }
    if (!facts_.missing.empty()) {
      html_ +=
          concat("<p class=\"note\"><a href=\"#missing\">What this record lacks</a>: ",
                 count_text(static_cast<std::int64_t>(facts_.missing.size()), "thing"), ".</p>\n");
    }
    html_ += "</section>\n";
  }

  void section(const char* id, const char* title, const std::string& inside) {
    if (inside.empty()) return;
    html_ += concat("<section id=\"", id, "\" aria-labelledby=\"of-", id, "\"><h2 id=\"of-", id,
                    "\">", title, "</h2>\n", inside, "</section>\n");
  }

  std::string figures(Section section) const {
    std::string html;
    for (const Chart& chart : charts_) {
      if (chart.section == section) html += figure_of(chart);
    }
    return html.empty() ? "" : "<div class=\"charts\">\n" + html + "</div>\n";
  }

  std::string badge() const {
    const char* style = !facts_.is_over ? "forming" : facts_.succeeded ? "succeeded" : "failed";
    const std::string text = !facts_.is_over        ? "no verdict"
                             : facts_.state.empty() ? (facts_.succeeded ? "succeeded" : "failed")
                                                    : state_text(facts_.state);
    return concat("<span class=\"badge ", style, "\">", html_text(text), "</span>");
  }

  Pairs tiles() const {
    Pairs tiles;
    const auto add = [&](const char* name, const std::string& text) {
      if (!text.empty()) tiles.emplace_back(name, text);
    };
    add("exit code", facts_.exit_code ? std::to_string(*facts_.exit_code) : "");
    add("duration", facts_.seconds > 0 ? seconds_text(facts_.seconds) : "");
    add(facts_.tells_steps ? "time in training (ETTR)" : "time that workers ran",
        facts_.ettr ? percent_text(*facts_.ettr) : "");
    const bool has_round = facts_.num_nodes > 0;
    add("nodes", has_round ? whole_text(facts_.num_nodes) : "");
    add("ranks", has_round ? whole_text(facts_.world_size) : "");
    add("rounds", facts_.num_rounds > 0 ? whole_text(facts_.num_rounds) : "");
    add("framework", facts_.framework);
    add("slowest rank", facts_.slow_ranks.empty()
                            ? ""
                            : concat(facts_.slow_ranks.front().rank, ": ×",
                                     number_text(facts_.slow_ranks.front().factor)));
    return tiles;
  }

  std::string failure() const {
    if (!record_.end_report || record_.end_report->failure.empty()) return "";
    const EndReport& report = *record_.end_report;
    std::string html = "<h3>The first failure</h3>" + pairs_of("facts", report.failure);
    if (!report.last_lines.empty()) {
      std::string lines;
      for (const std::string& line : report.last_lines) lines += html_text(line) + '\n';
      html += "<details open><summary>Its last lines</summary><pre>" + lines + "</pre></details>\n";
    }
    if (!report.victims.empty())
      html += "<h3>Failed after it</h3>" + list_of("plain", report.victims);
    return html;
  }

  std::string rounds_table() const {
    if (facts_.rounds.empty()) return "";
    Table table{.heads = {"round", "began", "length", "nodes", "ranks", "steps", "why it ended"}};
    const std::size_t skipped =
        facts_.rounds.size() > kMostRoundRows ? facts_.rounds.size() - kMostRoundRows : 0;
    if (skipped > 0) table.note = concat("The last ", kMostRoundRows, ".");
    for (std::size_t number = skipped; number < facts_.rounds.size(); ++number) {
      const RoundSpan& span = facts_.rounds[number];
      const RoundFacts& round = *span.facts;
      const bool is_last = number + 1 == facts_.rounds.size();
      std::string why = !round.cause.empty() ? round.cause
                        : !is_last           ? "not told"
                        : facts_.succeeded   ? "all workers succeeded"
                        : facts_.is_over     ? "with the job: " + facts_.reason
                                             : "not told";
      if (!round.first_failure.empty() && round.first_failure != round.cause) {
        why += "; first failure: " + round.first_failure;
      }
      if (!round.went.empty())
        why += concat("; went: ", round.went.front(), round.went.size() > 1 ? " …" : "");
      if (round.steps_redone > 0)
        why += concat("; ", count_text(round.steps_redone, "step"), " done again");
      if (round.steps_skipped > 0) {
        why += concat("; ", count_text(round.steps_skipped, "step"),
                      " skipped by the gradient scaler");
      }
      if (round.num_warm > 0 || !round.cold.empty()) {
        why += concat("; ", count_text(round.num_warm, "rank"), " began warm");
      }
      if (!round.cold.empty()) why += concat(", the others not: ", round.cold);
      table.rows.push_back(
          {concat(round.round, round.in_place ? ", in place" : ""), clock_text(span.begin),
           seconds_text(span.length()), whole_text(round.num_nodes), whole_text(round.world_size),
           round.last_step > 0
               ? concat(whole_text(round.first_step), " to ", whole_text(round.last_step))
               : "–",
           why});
    }
    return table_of(table, "Rounds and their causes");
  }

  std::string training() const {
    std::string html = figures(Section::kTraining);
    if (record_.train) html += pairs_of("facts", record_.train->facts);
    return html;
  }

  std::string steps() const {
    std::string html = figures(Section::kSteps);
    if (html.empty()) return html;
    if (facts_.slow_ranks.empty()) {
      html += paragraph("note", "No rank stands out: all means are within 10 % of the middle.");
    } else {
      Table table{.heads = {"rank", "host", "mean", "of the middle"}};
      for (const SlowRank& rank : facts_.slow_ranks) {
        table.rows.push_back({rank.rank, rank.host, seconds_text(rank.seconds),
                              concat("× ", number_text(rank.factor))});
      }
      html += table_of(table, "Stragglers: ranks whose mean is 10 % above the middle, or more");
    }
    std::vector<std::string> named;
    for (const RoundSpan& span : facts_.rounds) {
      for (const std::string& text : span.facts->stragglers) {
        if (named.size() < kMostRows)
          named.push_back(concat("round ", span.facts->round, ": ", text));
      }
    }
    if (!named.empty()) html += "<h3>Named by the rendezvous</h3>" + list_of("plain", named);
    return html;
  }

  std::string ends() const {
    if (record_.exits.empty()) return "";
    std::vector<std::string> counts;
    for (const auto& [kind, count] : record_.exits) {
      counts.push_back(concat(whole_text(count), ' ', end_text(kind)));
    }
    std::string html =
        paragraph("waits", "Worker processes of all rounds: " + listed(counts) + ".");
    if (record_.failures.empty()) return html;
    Table table{.heads = {"round", "rank", "host", "pid", "ended by", "at"}};
    for (const WorkerExit& exit : record_.failures) {
      if (table.rows.size() == kMostRows) {
        table.note = concat("The first ", kMostRows, ".");
        break;
      }
      const std::string how = !exit.signal.empty() ? exit.signal
                              : exit.exit_code     ? concat("exit code ", *exit.exit_code)
                                                   : state_text(exit.kind);
      table.rows.push_back({whole_text(exit.round), whole_text(exit.global_rank), exit.host,
                            std::to_string(exit.pid),
                            exit.kind == "out_of_memory" ? how + ", out of memory" : how,
                            clock_text(exit.at)});
    }
    return html + table_of(table, "Those that failed by themselves");
  }

  std::string nodes() const {
    if (record_.nodes.empty()) return "";
    const auto mean_of = [](const TimeGrid& grid, const std::string& host,
                            std::string (*text)(double)) {
      for (const TimeGrid::Row& row : grid.rows()) {
        if (row.name == host) return text(row.mean());
      }
      return std::string("–");
    };
    Table table{.heads = {"host", "node rank", "workers", "CPU", "memory", "received", "sent",
                          "last word"}};
    // Sorted by node rank.
    std::vector<std::pair<std::int64_t, const std::string*>> order;
    for (const auto& [host, node] : record_.nodes) {
      order.emplace_back(node.node_rank.value_or(INT64_MAX), &host);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    if (order.size() > kMostRows) {
      table.note = concat("The first ", kMostRows, " of ",
                          count_text(static_cast<std::int64_t>(order.size()), "node"), ".");
      order.resize(kMostRows);
    }
    const Readings& readings = record_.readings;
    for (const auto& [rank, host] : order) {
      const NodeFacts& node = record_.nodes.at(*host);
      table.rows.push_back(
          {*host, node.node_rank ? whole_text(*node.node_rank) : "–",
           node.num_workers > 0 ? whole_text(node.num_workers) : "–",
           mean_of(readings.cpu, *host, percent_text), mean_of(readings.memory, *host, bytes_text),
           mean_of(readings.received, *host, rate_text), mean_of(readings.sent, *host, rate_text),
           concat(clock_text(node.last_word), node.has_verdict ? ", its verdict" : "")});
    }
    return table_of(table, "Nodes: means of their readings");
  }

  std::string sources() const {
    Table table{.heads = {"file", "what", "lines", "unreadable"}};
    for (const Source& source : record_.sources) {
      if (table.rows.size() == kMostRows) {
        table.note = concat("The first ", kMostRows, " of ", record_.sources.size(), " files.");
        break;
      }
      std::string what = source.what;
      if (source.others > 0)
        what += concat(", with ", count_text(source.others, "line"), " of other jobs");
      table.rows.push_back({source.path, what, source.lines > 0 ? whole_text(source.lines) : "–",
                            source.unreadable > 0 ? concat(whole_text(source.unreadable),
                                                           ", the first: ", source.first_problem)
                                                  : "–"});
    }
    std::vector<std::string> passed = record_.passed_over;
    if (passed.size() > kMostRows) passed.resize(kMostRows);
    std::string html = table_of(table, "Files that were read");
    if (!passed.empty()) html += "<h3>Passed over</h3>" + list_of("plain", passed);
    return html;
  }

  const Record& record_;
  const Facts& facts_;
  const std::vector<Chart>& charts_;
  std::string html_;
};

}  // namespace

std::string html_text(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char letter : text) {
    switch (letter) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += letter;
    }
  }
  return escaped;
}

std::string report_page(const Record& record, const Facts& facts,
                        const std::vector<Chart>& charts) {
  return Page(record, facts, charts).html();
}

}  // namespace ddprun::report
