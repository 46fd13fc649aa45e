// The course's pages: Markdown with headings of the second level.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep::report {

// What stands under "## name", without empty lines around it; "" where there is no such heading.
std::string section_of(const std::string& page, const std::string& name);

// What docs/findings.md says of a generic finding, behind "- `slug`: "; "" where it says nothing.
std::string generic_finding(const std::filesystem::path& source, const std::string& slug);

// lessons/LESSON/pitfalls/SLUG.md
struct Page {
  std::string title;                         // behind "# SLUG: "
  std::string text;                          // all of it, from the title on
  std::map<std::string, std::string> facts;  // "name: value" between two lines "---" at its top
  std::string section(const std::string& name) const { return section_of(text, name); }
};
std::filesystem::path page_file(const std::filesystem::path& source, const std::string& lesson,
                                const std::string& slug);
// Throws Error where there is none.
Page read_page(const std::filesystem::path& source, const std::string& lesson,
               const std::string& slug);

// Every pitfall's, by slug.
std::map<std::string, Page> all_pages(const std::filesystem::path& source);

// The three hints of a page, from "where to look" to "almost the fix".
std::vector<std::string> hints_of(const Page& page);

}  // namespace lockstep::report
