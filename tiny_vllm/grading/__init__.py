"""What lecturers use: releases without answers, grades of what is handed in, rehearsals, slides."""
