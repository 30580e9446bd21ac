// SPDX-License-Identifier: Apache-2.0
#include "ctl/report/page_parts.h"

#include "common/log.h"
#include "ctl/report/clean_text.h"
#include "ctl/report/svg.h"

namespace ddprun::report {
namespace {

std::string sign_of(const LegendEntry& entry) {
  const char* shape =
      entry.sign == LegendEntry::Sign::kArea ? "d=\"M2 0H12V10H2Z\"" : "d=\"M0 5H16\"";
  const bool is_area = entry.sign == LegendEntry::Sign::kArea;
  return concat("<svg class=\"sign\" viewBox=\"0 0 16 10\" aria-hidden=\"true\"><path class=\"",
                is_area ? "f-" : "s-", entry.paint, "\" stroke-width=\"2.5\"",
                entry.sign == LegendEntry::Sign::kDashes ? " stroke-dasharray=\"5 3\" " : " ",
                shape, "/></svg>");
}

std::string legend_of(const std::vector<LegendEntry>& legend) {
  if (legend.empty()) return "";
  std::string html = "<ul class=\"legend\">";
  for (const LegendEntry& entry : legend) {
    html += "<li>" + sign_of(entry) + html_text(entry.text) + "</li>";
  }
  return html + "</ul>\n";
}

}  // namespace

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
  // What scrolls can be reached with the keyboard.
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
                "</figcaption>\n", legend_of(chart.legend), "<div class=\"plot\">",
                to_svg(chart.drawing), "</div>\n<details><summary>Data: ", html_text(chart.title),
                "</summary>\n", table_of(chart.table, chart.title), "</details></figure>\n");
}

}  // namespace ddprun::report
