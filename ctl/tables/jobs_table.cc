// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <iomanip>
#include <sstream>

#include "common/error.h"
#include "common/json.h"
#include "common/log.h"
#include "ctl/tables/page_text.h"
#include "ctl/tables/tables.h"

namespace ddprun::ctl {

namespace json = boost::json;

namespace {

struct Row {
  std::string id, phase, round, nodes;
  std::string exit_code = {}, ended = {}, why = {};  // of one that is over
};

Row live_row(const json::value& job) {
  return {text_at(job, "run_id"), text_at(job, "phase"),
          std::to_string(job.at("round").to_number<int>()),
          concat(job.at("nodes").as_array().size(), " of ", job.at("max_nodes").to_number<int>())};
}

Row finished_row(const json::value& job) {
  return {text_at(job, "run_id"),
          text_at(job, "phase"),
          std::to_string(job.at("rounds").to_number<int>()),
          std::to_string(job.at("num_nodes").to_number<int>()),
          std::to_string(job.at("exit_code").to_number<int>()),
          text_at(job, "ended"),
          text_at(job, "reason")};
}

void print(std::ostream& table, const Row& row) {
  std::ostringstream line;
  line << std::left << std::setw(32) << row.id << ' ' << std::setw(10) << row.phase << ' '
       << std::setw(6) << row.round << ' ' << std::setw(12) << row.nodes << ' ' << std::setw(5)
       << row.exit_code << ' ' << std::setw(21) << row.ended << ' ' << row.why;
  std::string text = line.str();
  text.erase(text.find_last_not_of(' ') + 1);
  table << text << '\n';
}

}  // namespace

std::string jobs_table(const std::string& page) {
  std::ostringstream table;
  try {
    const json::value all = json::parse(page);
    const json::object& object = all.as_object();
    const json::array& jobs = all.at("jobs").as_array();
    const json::value* finished = object.if_contains("finished");  // an older ddprund has none
    const json::value* journal = object.if_contains("journal");
    if (journal != nullptr && journal->is_object() && !journal->at("kept").as_bool()) {
      table << "not kept now, jobs go on in memory: " << text_at(*journal, "trouble") << '\n';
    }
    const bool any_finished = finished != nullptr && !finished->as_array().empty();
    if (jobs.empty() && !any_finished) return table.str() + "no jobs\n";
    Row head{"JOB", "PHASE", "ROUND", "NODES"};
    if (any_finished) head.exit_code = "EXIT", head.ended = "ENDED", head.why = "WHY";
    print(table, head);
    for (const json::value& job : jobs) print(table, live_row(job));
    if (!any_finished) return table.str();
    for (const json::value& job : finished->as_array()) print(table, finished_row(job));
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kProtocol,
                concat("/v1/jobs is not what was expected: ", json_trouble(error)));
  }
  return table.str();
}

}  // namespace ddprun::ctl
